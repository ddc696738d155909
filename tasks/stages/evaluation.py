"""Stage evaluation: the newest policy plays held-out tasks. Success has a 95% interval and a baseline beside it.

The eval tasks give the figures to report, the validation tasks those by which early stopping and the champion choose.
"""

from collections.abc import Sequence
from contextlib import suppress

from schemas.config import Config
from schemas.rows import Episode, Evaluation, Retention, Split, Transition
from schemas.rows.evaluated import Evaluated, coverage
from tasks.environments import AbsentEnvironment, make_environment
from tasks.environments.base import Task, Unplayable
from tasks.environments.splits import played_tasks
from tasks.measures.baseline import baseline
from tasks.measures.retention import measure_retention, retention_metrics
from tasks.measures.success import pass_hat, wilson_interval
from tasks.roles.episode import EpisodeResult, episode_metrics, play_all, repeated
from tasks.runtime.algorithm import Algorithm
from tasks.runtime.context import StageContext
from tasks.runtime.lineage import Resolver
from tasks.runtime.stage import Bound, Inputs, Output, Stage, episode_bound

NONE_PLAYED = "no episode was played to an end; see the errors in table episodes"


async def evaluation(ctx: StageContext) -> Output:
    """Play `evaluation.episodes` eval tasks and `evaluation.validation_count` validation tasks, the same each iteration
    and with the same random streams, so that policies are compared pairwise, each `evaluation.repeats` times; with
    `evaluation.retention` also score general prompts. Where nothing can be played the row says so, with status
    skipped."""
    section, environment = ctx.config.evaluation, ctx.environment
    counts: dict[Evaluated, int] = {"eval": section.episodes}
    if section.validation_count:
        counts["validation"] = section.validation_count
    skipped = environment.unplayable if isinstance(environment, Unplayable) else None
    tasks: dict[Split, list[Task]] = {
        split: [] if skipped else repeated(_drawn(played_tasks(environment, split), count), section.repeats)
        for split, count in counts.items()
    }
    results = await play_all(ctx, tasks, section.repeats)
    beside = await baseline(ctx, tasks["eval"]) if tasks["eval"] and section.baseline else None
    rows: list[Evaluation] = []
    metrics: dict[str, float] = {}
    for split in counts:
        row, found = _measure(ctx, split, [r for r in results if r.episode.split == split], skipped)
        if split == "eval" and beside:
            row = row.model_copy(
                update={"baseline": beside.kind, "baseline_success_rate": beside.success_rate}
            )
            found["baseline_success_rate"] = beside.success_rate
        rows.append(row)
        metrics |= found if split == "eval" else {f"{split}_{name}": value for name, value in found.items()}
    retention = await measure_retention(ctx) if section.retention else []
    return Output(
        tables={
            "episodes": [r.episode for r in results],
            "transitions": [t for r in results for t in r.transitions],
            "evaluations": rows,
            "retention": retention,
        },
        rows_in=len(results),
        metrics={**metrics, **retention_metrics(retention)},
    )


def _drawn(known: Sequence[Task], count: int) -> list[Task]:
    """Tasks in turn, `count` in all."""
    return [known[n % len(known)] for n in range(count)]


def _measure(
    ctx: StageContext, split: Evaluated, results: Sequence[EpisodeResult], skipped: str | None
) -> tuple[Evaluation, dict[str, float]]:
    """The row of a split's episodes, and its metrics."""
    played = [r.episode for r in results if r.episode.status == "ok"]
    successes, covered = sum(e.success for e in played), coverage(len(played), len(results) - len(played))
    metrics = episode_metrics(results)
    low, high = wilson_interval(successes, len(played)) if played else (None, None)
    row = Evaluation(
        run=ctx.config.run,
        iteration=ctx.iteration,
        status="skipped" if skipped else "ok" if played else "no_episodes",
        error=skipped or (None if played else NONE_PLAYED),
        split=split,
        policy_version=ctx.roles.model_version("policy", "policy"),
        environment=ctx.environment.name,
        episodes=len(played),
        failed_episodes=len(results) - len(played),
        coverage=covered,
        successes=successes,
        success_rate=metrics.get("success_rate"),
        success_low=low,
        success_high=high,
        mean_reward=metrics.get("mean_reward"),
        mean_game_reward=metrics.get("mean_game_reward"),
        mean_turns=metrics.get("mean_turns"),
        invalid_action_rate=metrics.get("invalid_action_rate"),
        pass_hat=pass_hat(played),
    )
    if covered is not None:
        metrics = {**metrics, "coverage": covered}
    if low is not None and high is not None:
        metrics = {**metrics, "success_low": low, "success_high": high}
    if row.pass_hat is not None:
        metrics[f"pass_hat_{len(row.pass_hat)}"] = row.pass_hat[-1]
    return row, metrics


def _inputs(resolve: Resolver) -> Inputs:
    return Inputs(adapters={"policy": resolve.policy_after(resolve.iteration)})


def _bound(config: Config, algorithm: Algorithm) -> Bound:
    with suppress(AbsentEnvironment):  # it can be played where it is
        if isinstance(make_environment(config.environment), Unplayable):
            return Bound(0, 0, "skipped: nothing can be played")
    section = config.evaluation
    return episode_bound(config, (section.episodes + section.validation_count) * section.repeats)


STAGE = Stage(
    name="evaluation",
    version=8,
    pool="inference",
    reads=(),
    writes=(Episode, Transition, Evaluation, Retention),
    config=(
        "environment",
        "rollout.max_steps",
        "evaluation.episodes",
        "evaluation.validation_episodes",
        "evaluation.repeats",
        "evaluation.baseline",
        "evaluation.retention",
    ),
    roles=("policy",),
    templates=("policy",),
    inputs=_inputs,
    bound=_bound,
    run=evaluation,
    item=EpisodeResult,
)
