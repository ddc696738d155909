"""The clipped-ratio loss of sampled turns (PPO, arXiv 1707.06347; GRPO, DAPO, Dr. GRPO and GSPO are settings of it).

With rho = p_theta / p_old and the advantage A of the turn, the loss of a token is

    -min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A) * min(p_old / p_engine, importance_cap)

p_old is the trainer's own probability before the stage's first step, so the ratio is 1 there whatever the engine
computed. The last factor is there only with `importance_cap`, and no gradient goes through it. Only the tokens that the
policy sampled have a loss, each turn's under its own prompt.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from tasks.training.data import Encoded
from tasks.training.job import PolicyGradient

MEASURES = ("clipped", "old_kl")  # sums over tokens that `ClippedRatio.losses` takes
# Beyond it exp overflows in float32, and where the ratio is clipped 0 * inf would be the gradient.
LARGEST_LOG_RATIO = 20.0


@dataclass(frozen=True)
class EngineGap:
    """How far the trainer's log-probabilities are from those that the engine reported, d = log p_old - log p_engine.

    Attributes:
        mean: of |d| (nats).
        largest: |d|.
        k3: mean of exp(d) - 1 - d, which estimates KL(p_engine || p_old) (Schulman 2020, "Approximating KL
            divergence").
    """

    mean: float
    largest: float
    k3: float


@dataclass(frozen=True)
class ClippedRatio:
    """The loss of a training's sampled turns.

    Attributes:
        settings: level, clipping, normalisation.
        old: log p_old of each row's tokens, by row.
        episodes: tokens of each episode, over all its turns that are trained on.
    """

    settings: PolicyGradient
    old: Mapping[str, tuple[float, ...]]
    episodes: Mapping[str, int]

    def losses(self, nll: torch.Tensor, rows: Sequence[Encoded]) -> tuple[torch.Tensor, torch.Tensor]:
        """The losses of all label tokens, row after row; those of rows that were not sampled stay as they are.

        Args:
            nll: -log p_theta, float32 [label tokens of all rows].
            rows: R rows.

        Returns:
            float32 [label tokens of all rows], and the sums of MEASURES over the sampled tokens, float32 [2].
        """
        measured = torch.zeros(len(MEASURES), device=nll.device)
        parts = list(nll.split([len(row.label_ids) for row in rows]))
        for number, row in enumerate(rows):
            if row.sampled is not None:
                parts[number], found = self._turn(parts[number], row.row_id, row.sampled.advantage)
                if self.settings.section.importance_cap is not None:
                    parts[number] = parts[number] * self._importance(row).to(nll.device)
                measured = measured + found
        return torch.cat(parts), measured

    def _turn(self, nll: torch.Tensor, row_id: str, advantage: float) -> tuple[torch.Tensor, torch.Tensor]:
        section = self.settings.section
        each = (-nll - torch.tensor(self.old[row_id], device=nll.device)).clamp(max=LARGEST_LOG_RATIO)
        log_ratio = each.mean().expand_as(each) if section.level == "sequence" else each
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1.0 - section.clip_low, 1.0 + section.clip_high)
        losses = -torch.minimum(ratio * advantage, clipped * advantage)
        with torch.no_grad():
            is_clipped = (clipped * advantage < ratio * advantage).sum()
            old_kl = (each.exp() - 1.0 - each).sum()
        return losses, torch.stack([is_clipped.to(old_kl.dtype), old_kl])

    def _importance(self, row: Encoded) -> torch.Tensor:
        """Truncated importance weights [label tokens]."""
        return torch.tensor(self._gap(row)).exp().clamp(max=self.settings.section.importance_cap)

    def _gap(self, row: Encoded) -> list[float]:
        """log p_old - log p_engine of each label token."""
        assert row.sampled is not None
        both = zip(self.old[row.row_id], row.sampled.logprobs, strict=True)
        return [ours - theirs for ours, theirs in both]

    def coefficients(self, batch: Sequence[Encoded]) -> dict[str, float]:
        """The factor of each sampled row's mean token loss in the batch's loss, by the normalisation.

        A batch may hold some turns of an episode only. Then it holds that share of an episode.
        """
        tokens: dict[str, int] = {}
        shares: dict[str, float] = {}
        for row in batch:
            if row.sampled is not None:
                tokens[row.row_id] = len(row.label_ids)
                shares[row.row_id] = len(row.label_ids) / self.episodes[row.sampled.episode_id]
        episodes = sum(shares.values())
        match self.settings.section.normalisation:
            case "grpo":
                return {row_id: share / episodes for row_id, share in shares.items()}
            case "dapo":
                return {row_id: count / sum(tokens.values()) for row_id, count in tokens.items()}
            case "dr_grpo":
                return {row_id: count / (self.settings.budget * episodes) for row_id, count in tokens.items()}

    def engine_gap(self, batch: Sequence[Encoded]) -> EngineGap:
        """The gap over a batch's sampled tokens."""
        gaps = [gap for row in batch if row.sampled is not None for gap in self._gap(row)]
        gap = torch.tensor(gaps, dtype=torch.float64)
        k3 = (gap.clamp(max=LARGEST_LOG_RATIO).exp() - 1.0 - gap).mean()
        return EngineGap(float(gap.abs().mean()), float(gap.abs().max()), float(k3))


def make_clipped_ratio(
    settings: PolicyGradient, own: Sequence[Encoded], old: Mapping[str, tuple[float, ...]]
) -> ClippedRatio | None:
    """The loss of a training's own rows; None where none was sampled.

    Args:
        settings: level, clipping, normalisation.
        own: all own rows of the training.
        old: log-probabilities of their tokens before the first step, by row.
    """
    episodes = Counter[str]()
    for row in own:
        if row.sampled is not None:
            episodes[row.sampled.episode_id] += len(row.label_ids)
    return ClippedRatio(settings, old, episodes) if episodes else None
