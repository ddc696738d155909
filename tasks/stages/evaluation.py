"""Stage evaluation: the newest policy plays held-out tasks. Success has a 95% interval and a baseline beside it."""

from schemas.config import Config
from schemas.rows import Episode, Evaluation, Retention, Transition
from tasks.environments import make_environment
from tasks.environments.base import Unplayable
from tasks.measures.baseline import baseline
from tasks.measures.retention import measure_retention, retention_metrics
from tasks.measures.success import pass_hat, wilson_interval
from tasks.roles.episode import episode_metrics, play_all
from tasks.runtime.algorithm import Algorithm
from tasks.runtime.context import StageContext
from tasks.runtime.lineage import Resolver
from tasks.runtime.stage import Bound, Inputs, Output, Stage, episode_bound

NONE_PLAYED = "no episode was played to an end; see the errors in table episodes"


async def evaluation(ctx: StageContext) -> Output:
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
