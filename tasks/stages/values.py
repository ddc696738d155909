"""Stage values: V(s) of each state just acted in, by the value head that the last iteration left.

An episode that was cut from outside also has the value of the state it was cut in, which stands for what would have
followed.
"""

import polars as pl

from schemas.config import Config
from schemas.rows import Transition, Value
from storage.history import State
from tasks.datasets.drawn_transitions import load_drawn
from tasks.datasets.example import Example, Sampled
from tasks.prompting.role_prompts import policy_prompt
from tasks.runtime.algorithm import Algorithm
from tasks.runtime.context import StageContext
from tasks.runtime.lineage import Resolver
from tasks.runtime.stage import Bound, Inputs, Output, Stage
from tasks.training.valuing import values_of

NEXT = "/next"  # ends the row id of a state that an episode was cut in


async def values(ctx: StageContext) -> Output:
    """A row for every transition of the iteration's rollout.

    Raises:
        StageFailed: the model or its value head can't be used.
    """
    played = ctx.inputs.scan("transitions").select("transition_id", "truncated").collect()
    transitions = load_drawn(ctx.inputs, played["transition_id"])
    cut = set(played.filter(pl.col("truncated"))["transition_id"])
    states = {name: transition.state for name, transition in transitions.items()}
    states |= {name + NEXT: transitions[name].next_state for name in cut}
    examples = [_example(ctx, name, state) for name, state in states.items()]
    size = ctx.config.policy.micro_batch_rows
    found, too_long = await values_of(ctx, examples, adapter="policy", head="value_head", rows=size)
    start = ctx.inputs.adapters["policy"]
    rows = []
    for name in played["transition_id"]:
        fault = too_long.get(name) or too_long.get(name + NEXT)
        rows.append(
            Value(
                run=ctx.config.run,
                iteration=ctx.iteration,
                status="too_long" if fault else "ok",
                error=fault,
                transition_id=name,
                value=found.get(name),
                next_value=found.get(name + NEXT),
                policy_version=start.version if start else "base",
            )
        )
    known = [row.value for row in rows if row.value is not None]
    mean = {"mean_value": sum(known) / len(known)} if known else {}
    return Output(tables={"values": rows}, rows_in=len(rows), metrics=mean)


def _example(ctx: StageContext, row_id: str, state: State) -> Example:
    """A state as the policy's prompt shows it; its label, which plays no part, is one token."""
    prompt = policy_prompt(ctx.prompts, state)
    turn = Sampled((0,), (0.0,), thinking=ctx.config.roles.policy.thinking)
    return Example(row_id, "policy", prompt.messages, (), tools=prompt.tools, sampled=turn)


def _inputs(resolve: Resolver) -> Inputs:
    return Inputs(
        tables={"transitions": [resolve.here("rollout")]},
        adapters={"policy": resolve.policy()},
        files=resolve.value_heads(),
    )


def _bound(config: Config, algorithm: Algorithm) -> Bound:
    turns = config.rollout.episodes * config.rollout.repeats * config.rollout.max_steps
    return Bound(0, 0, f"values of up to {turns} states")


STAGE = Stage(
    name="values",
    version=1,
    pool="training",
    reads=(Transition,),
    writes=(Value,),
    config=("environment", "roles.policy.tool_calls", "roles.policy.max_tokens", "roles.policy.thinking"),
    roles=(),
    templates=("policy",),
    inputs=_inputs,
    bound=_bound,
    run=values,
)
