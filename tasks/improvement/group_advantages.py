"""Group-relative advantages (GRPO, Shao et al., arXiv 2402.03300): an episode against others of the same task."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from schemas.rows import Advantage, Episode
from tasks.runtime.context import StageContext

STD_FLOOR = 1e-4  # added to the standard deviation, as TRL does


@dataclass(frozen=True)
class Group:
    """The returns of a group's episodes, those that were played to an end."""

    returns: Sequence[float]
    divide_by_std: bool

    @property
    def mean(self) -> float:
        """The baseline."""
        return fmean(self.returns)

    @property
    def std(self) -> float | None:
        """Sample standard deviation (n - 1); None below two episodes."""
        return stdev(self.returns) if len(self.returns) > 1 else None

    @property
    def spread(self) -> bool:
        """Whether any two returns differ."""
        return min(self.returns) < max(self.returns)

    @property
    def scale(self) -> float:
        """What the difference to the mean is divided by."""
        return self.std + STD_FLOOR if self.divide_by_std and self.std is not None else 1.0

    def advantage(self, episode_return: float) -> float:
        """(R - mean) / scale; exactly 0 where the returns don't differ."""
        return (episode_return - self.mean) / self.scale if self.spread else 0.0


def group_relative(ctx: StageContext) -> list[Advantage]:
    """A = (R - mean) / std over the episodes of a group, the same for all turns of an episode.

    R is the undiscounted sum of the episode's rewards. A group whose returns are all equal tells nothing: its rows
    have status no_spread. Failed episodes count in no group.
    """
    episodes: dict[str, Episode] = {row.episode_id: row for row in ctx.inputs.rows("episodes")}
    returns: dict[str | None, list[float]] = defaultdict(list)
    for episode in episodes.values():
        if episode.status == "ok":
            returns[episode.group_id].append(episode.reward)
    divide_by_std = ctx.config.policy_gradient.divide_by_std
    groups = {name: Group(values, divide_by_std) for name, values in returns.items()}
    steps = ctx.inputs.scan("transitions").select("transition_id", "episode_id").collect()
    return [
        Advantage(
            run=ctx.config.run,
            iteration=ctx.iteration,
            transition_id=transition_id,
            episode_id=episode_id,
            group_id=episodes[episode_id].group_id,
            kind="group",
            **_rating(episodes[episode_id], groups),
        )
        for transition_id, episode_id in steps.iter_rows()
    ]


def _rating(episode: Episode, groups: Mapping[str | None, Group]) -> dict[str, Any]:
    """The columns that all turns of an episode share."""
    if episode.status != "ok":
        return {"status": "episode_failed", "error": f"{episode.status}: {episode.error}"}
    group = groups[episode.group_id]
    equal = f"all {len(group.returns)} episodes of the group have return {episode.reward:g}"
    return {
        "status": "ok" if group.spread else "no_spread",
        "error": None if group.spread else equal,
        "return_estimate": episode.reward,
        "baseline": group.mean,
        "scale": group.scale,
        "advantage": group.advantage(episode.reward),
        "group_size": len(group.returns),
        "group_std": group.std,
    }
