"""Stage td-targets: what Q(s, a) of each drawn transition is to become, y = r + discount * V(s').

V(s') is the soft value (`tasks.improvement.soft_values`) of the actions sampled at s', by the target parameters and
their value head. Done: y is r. A truncated step is not done: it bootstraps from s'.
"""

from statistics import fmean

from schemas.config import Config
from schemas.rows import ReplaySample, SampledAction, TdTarget, Transition
from tasks.datasets.drawn_transitions import DrawnTransition, load_drawn
from tasks.improvement.soft_values import soft_value
from tasks.runtime.algorithm import Algorithm
from tasks.runtime.context import StageContext
from tasks.runtime.lineage import Resolver
from tasks.runtime.stage import Bound, Inputs, Output, Stage
from tasks.training.action_values import value_example
from tasks.training.valuing import values_of


async def td_targets(ctx: StageContext) -> Output:
    """A row for every draw.

    Raises:
        StageFailed: the model or its value head can't be used.
    """
    samples: list[ReplaySample] = ctx.inputs.rows("replay_samples")
    transitions = load_drawn(ctx.inputs, (sample.transition_id for sample in samples))
    drawn: dict[str, list[SampledAction]] = {sample.sample_id: [] for sample in samples}
    for action in ctx.inputs.rows("sampled_actions"):
        if action.place == "next_state":
            drawn[action.sample_id].append(action)
    examples = [
        value_example(ctx, a.action_id, transitions[a.transition_id].next_state, a.action_text)
        for actions in drawn.values()
        for a in actions
        if a.status == "ok"
    ]
    size = ctx.config.critic.micro_batch_rows
    values, too_long = await values_of(ctx, examples, adapter="target", head="target_value_head", rows=size)
    target = ctx.inputs.adapters["target"]
    version = target.version if target else "base"
    rows = []
    for sample in samples:
        actions = drawn[sample.sample_id]
        known = [values[a.action_id] for a in actions if a.action_id in values]
        faults = (too_long.get(a.action_id) or a.error for a in actions)
        fault = next(filter(None, faults), "no action was sampled at s'")
        rows.append(
            td_target(ctx, sample, transitions[sample.transition_id], known, fault=fault, version=version)
        )
    targets = [row.target for row in rows if row.target is not None]
    return Output(
        tables={"td_targets": rows},
        rows_in=len(rows),
        metrics={
            "terminal_share": sum(row.terminal for row in rows) / len(rows),
            **({"mean_target": fmean(targets)} if targets else {}),
        },
    )


def td_target(
    ctx: StageContext,
    sample: ReplaySample,
    transition: DrawnTransition,
    next_values: list[float],
    *,
    fault: str,
    version: str,
) -> TdTarget:
    """One TD target.

    Args:
        ctx: the stage's context.
        sample: the draw.
        transition: what was drawn.
        next_values: Q_bar(s', a'_j) of the sampled a'_j; none where the episode ended.
        fault: why there is none, where it did not end.
        version: the target parameters.
    """
    section = ctx.config.soft_q
    soft = soft_value(next_values, section.temperature) if next_values else None
    known = transition.done or soft is not None
    return TdTarget(
        run=ctx.config.run,
        iteration=ctx.iteration,
        status="ok" if known else "no_next_value",
        error=None if known else fault,
        target_id=sample.sample_id,
        sample_id=sample.sample_id,
        transition_id=sample.transition_id,
        terminal=transition.done,
        next_values=next_values,
        soft_value=soft,
        target=transition.reward + section.discount * (soft or 0.0) if known else None,
        target_version=version,
    )


def _inputs(resolve: Resolver) -> Inputs:
    heads = resolve.value_heads()
    return Inputs(
        tables={
            "replay_samples": [resolve.replay_samples()],
            "sampled_actions": [resolve.here("action-samples")],
            "transitions": resolve.replay(),
        },
        adapters={"target": resolve.target()},
        files={name: made for name, made in heads.items() if name == "target_value_head"},
    )


def _bound(config: Config, algorithm: Algorithm) -> Bound:
    values = config.replay.transitions * config.improvement.actions
    return Bound(0, 0, f"values of up to {values} actions")


STAGE = Stage(
    name="td-targets",
    version=1,
    pool="training",
    reads=(ReplaySample, SampledAction, Transition),
    writes=(TdTarget,),
    config=("environment", "soft_q.temperature", "soft_q.discount", "roles.predict.max_tokens"),
    roles=(),
    templates=("predict",),
    inputs=_inputs,
    bound=_bound,
    run=td_targets,
)
