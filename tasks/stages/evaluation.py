"""Stage evaluation: the newest policy on held-out tasks, with a 95% interval and beside a player without a model."""

<<<<<<< HEAD
=======
import math
from collections import defaultdict
from collections.abc import Sequence

from schemas.config import Config
>>>>>>> 3f91e79 (Algorithms are values, and a stage is given what it needs)
from schemas.rows import Episode, Evaluation, Retention, Transition
from tasks.environments import make_environment
from tasks.environments.base import Unplayable
from tasks.measures.baseline import baseline
from tasks.measures.retention import measure_retention, retention_metrics
<<<<<<< HEAD
from tasks.measures.success import pass_hat, wilson_interval
=======
from tasks.roles.episode import episode_metrics, play_all
from tasks.runtime.algorithm import Algorithm
>>>>>>> 3f91e79 (Algorithms are values, and a stage is given what it needs)
from tasks.runtime.context import StageContext
from tasks.runtime.lineage import Resolver
from tasks.runtime.stage import Bound, Inputs, Output, Stage, episode_bound

NONE_PLAYED = "no episode was played to an end; see the errors in table episodes"


<<<<<<< HEAD
async def evaluation(ctx: StageContext, inputs: Inputs) -> Output:
=======
def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """95% Wilson score interval of a rate (Wilson 1927), in [0, 1].

    Raises:
        ValueError: no trials.
    """
    if trials < 1:
        raise ValueError("an interval needs at least one trial")
    rate, z2 = successes / trials, Z95**2
    middle = (rate + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z95 / (1 + z2 / trials) * math.sqrt(rate * (1 - rate) / trials + z2 / (4 * trials**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def pass_hat(episodes: Sequence[Episode]) -> list[float] | None:
    """pass^k for k = 1, 2, ...: the chance that k plays of a task, any k, all succeed (Yao et al. 2024, tau-bench).

    Of n plays of a task, c won, that is C(c, k) / C(n, k); the mean is over tasks. k goes up to the fewest plays of
    any task.

    Args:
        episodes: played to an end.

    Returns:
        None where no task was played twice.
    """
    plays: dict[str, list[bool]] = defaultdict(list)
    for episode in episodes:
        plays[episode.task_id].append(episode.success)
    if all(len(won) < 2 for won in plays.values()):
        return None
    return [
        sum(math.comb(sum(won), k) / math.comb(len(won), k) for won in plays.values()) / len(plays)
        for k in range(1, min(map(len, plays.values())) + 1)
    ]


async def evaluation(ctx: StageContext) -> Output:
>>>>>>> 3f91e79 (Algorithms are values, and a stage is given what it needs)
    """Play `evaluation.episodes` eval tasks, the same each iteration and with the same random streams, so that policies
    are compared pairwise, each `evaluation.repeats` times; with `evaluation.retention` also score general prompts.
    Where nothing can be played the row says so, with status skipped."""
    section, environment = ctx.config.evaluation, ctx.environment
    skipped = environment.unplayable if isinstance(environment, Unplayable) else None
    known = environment.tasks("eval")
    count = 0 if skipped else section.episodes
    tasks = [known[n % len(known)] for n in range(count) for _ in range(section.repeats)]
    results = await play_all(ctx, tasks, "eval")
    beside = await baseline(ctx, tasks) if tasks and section.baseline else None
    episodes = [r.episode for r in results]
    played = [e for e in episodes if e.status == "ok"]
    successes = sum(e.success for e in played)
    metrics = episode_metrics(results)
    low, high = wilson_interval(successes, len(played)) if played else (None, None)
    row = Evaluation(
        run=ctx.config.run,
        iteration=ctx.iteration,
        status="skipped" if skipped else "ok" if played else "no_episodes",
        error=skipped or (None if played else NONE_PLAYED),
        policy_version=ctx.roles.model_version("policy", "policy"),
        environment=ctx.environment.name,
        episodes=len(played),
        failed_episodes=len(episodes) - len(played),
        successes=successes,
        success_rate=metrics.get("success_rate"),
        success_low=low,
        success_high=high,
        mean_reward=metrics.get("mean_reward"),
        mean_game_reward=metrics.get("mean_game_reward"),
        mean_turns=metrics.get("mean_turns"),
        invalid_action_rate=metrics.get("invalid_action_rate"),
        baseline=beside.kind if beside else None,
        baseline_success_rate=beside.success_rate if beside else None,
        pass_hat=pass_hat(played),
    )
    if low is not None and high is not None:
        metrics = {**metrics, "success_low": low, "success_high": high}
    if row.baseline_success_rate is not None:
        metrics["baseline_success_rate"] = row.baseline_success_rate
    if row.pass_hat is not None:
        metrics[f"pass_hat_{len(row.pass_hat)}"] = row.pass_hat[-1]
    retention = await measure_retention(ctx) if section.retention else []
    return Output(
        tables={
            "episodes": episodes,
            "transitions": [t for r in results for t in r.transitions],
            "evaluations": [row],
            "retention": retention,
        },
        rows_in=len(tasks),
        metrics={**metrics, **retention_metrics(retention)},
    )


def _inputs(resolve: Resolver) -> Inputs:
    return Inputs(adapters={"policy": resolve.policy_after(resolve.iteration)})


def _bound(config: Config, algorithm: Algorithm) -> Bound:
    if isinstance(make_environment(config.environment), Unplayable):
        return Bound(0, 0, "skipped: nothing can be played")
    return episode_bound(config, config.evaluation.episodes * config.evaluation.repeats)


STAGE = Stage(
    name="evaluation",
    version=6,
    pool="inference",
    reads=(),
    writes=(Episode, Transition, Evaluation, Retention),
    config=(
        "environment",
        "rollout.max_steps",
        "evaluation.episodes",
        "evaluation.repeats",
        "evaluation.baseline",
        "evaluation.retention",
    ),
    roles=("policy",),
    templates=("policy",),
    inputs=_inputs,
    bound=_bound,
    run=evaluation,
)
