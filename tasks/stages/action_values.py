"""Stage action-values: Q(s, a) of the actions sampled at s, by the new critic, and their weights in the policy's loss.

The weights are n * softmax(Q(s, .) / temperature) over the n actions of a state (`tasks.improvement.soft_values`).
"""

from collections import defaultdict
from statistics import fmean

from schemas.config import Config
from schemas.rows import ActionValue, SampledAction, Transition
from tasks.datasets.drawn_transitions import load_drawn
from tasks.improvement.soft_values import soft_weights
from tasks.runtime.algorithm import Algorithm
from tasks.runtime.context import StageContext
from tasks.runtime.lineage import Resolver
from tasks.runtime.stage import Bound, Inputs, Output, Stage
from tasks.training.action_values import value_example
from tasks.training.valuing import values_of


async def action_values(ctx: StageContext) -> Output:
    """A row for every action sampled at s that the environment accepts.

    Raises:
        StageFailed: the model or its value head can't be used.
    """
    sampled: list[SampledAction] = ctx.inputs.rows("sampled_actions")
    actions = [row for row in sampled if row.place == "state" and row.status == "ok"]
    transitions = load_drawn(ctx.inputs, (row.transition_id for row in actions))
    examples = [
        value_example(ctx, row.action_id, transitions[row.transition_id].state, row.action_text)
        for row in actions
    ]
    size = ctx.config.critic.micro_batch_rows
    values, too_long = await values_of(ctx, examples, adapter="critic", head="value_head", rows=size)
    states: dict[str, list[str]] = defaultdict(list)
    for row in actions:
        if row.action_id in values:
            states[row.sample_id].append(row.action_id)
    weights: dict[str, float] = {}
    for ids in states.values():
        found = soft_weights([values[name] for name in ids], ctx.config.soft_q.temperature)
        weights |= dict(zip(ids, found, strict=True))
    critic = ctx.inputs.adapters["critic"]
    rows = [
        ActionValue(
            run=ctx.config.run,
            iteration=ctx.iteration,
            status="too_long" if row.action_id in too_long else "ok",
            error=too_long.get(row.action_id),
            action_id=row.action_id,
            sample_id=row.sample_id,
            value=values.get(row.action_id),
            weight=weights.get(row.action_id),
            critic_version=critic.version if critic else "base",
        )
        for row in actions
    ]
    mean = {"mean_value": fmean(values.values())} if values else {}
    return Output(tables={"action_values": rows}, rows_in=len(rows), metrics=mean)


def _inputs(resolve: Resolver) -> Inputs:
    heads = resolve.critic_heads()
    return Inputs(
        tables={"sampled_actions": [resolve.here("action-samples")], "transitions": resolve.replay()},
        adapters={"critic": resolve.critic()},
        files={name: made for name, made in heads.items() if name == "value_head"},
    )


def _bound(config: Config, algorithm: Algorithm) -> Bound:
    states = min(config.improvement.states, config.replay.transitions)
    return Bound(0, 0, f"values of up to {states * config.improvement.actions} actions")


STAGE = Stage(
    name="action-values",
    version=1,
    pool="training",
    reads=(SampledAction, Transition),
    writes=(ActionValue,),
    config=("environment", "soft_q.temperature", "roles.predict.max_tokens"),
    roles=(),
    templates=("predict",),
    inputs=_inputs,
    bound=_bound,
    run=action_values,
)
