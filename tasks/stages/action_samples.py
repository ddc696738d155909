"""Stage action-samples: the policy samples actions at drawn transitions, for a critic that rates actions by a number.

At s' of every drawn transition that did not end its episode, `improvement.actions` a' ~ pi(.|s'), for the TD target. In
s of `improvement.states` of them as many a ~ pi(.|s), for the policy to be trained on.
"""

from collections.abc import Iterator
from typing import Literal

from schemas.config import Config
from schemas.rows import ReplaySample, SampledAction, Transition
from tasks.datasets.drawn_transitions import DrawnCosts, DrawnTransition, choose_states, load_drawn
from tasks.environments.base import Task, tasks_by_id
from tasks.improvement.validate import accepted
from tasks.measures.entropy import action_entropy
from tasks.roles.policy import sample_action
from tasks.runtime.algorithm import Algorithm
from tasks.runtime.context import StageContext
from tasks.runtime.lineage import Resolver
from tasks.runtime.stage import Bound, Inputs, Output, Stage
from tasks.text.formats import label_thought

Place = Literal["state", "next_state"]


async def action_samples(ctx: StageContext) -> Output:
    """Sample the actions of an iteration's replay draw; none at s before `improvement.from_iteration`."""
    samples: list[ReplaySample] = ctx.inputs.rows("replay_samples")
    costs = DrawnCosts(ctx.inputs, (sample.transition_id for sample in samples))
    improves = ctx.iteration >= ctx.config.improvement.from_iteration
    chosen = {sample.sample_id for sample in choose_states(ctx, samples)} if improves else set()

    def places() -> Iterator[tuple[ReplaySample, Place]]:
        for sample in samples:
            if sample.sample_id in chosen:
                yield sample, "state"
            if not costs.ends(sample.transition_id):
                yield sample, "next_state"

    def cost(item: tuple[ReplaySample, Place, int]) -> float:
        return costs.text(item[0].transition_id)

    numbers = range(ctx.config.improvement.actions)
    items = [(*at, number) for at in places() for number in numbers]
    transitions = load_drawn(ctx.inputs, (sample.transition_id for sample, _, _ in ctx.dealt(items, cost)))
    tasks = tasks_by_id(ctx.environment, {t.task_id for t in transitions.values()})

    async def work(item: tuple[ReplaySample, Place, int]) -> SampledAction:
        transition = transitions[item[0].transition_id]
        return await sampled_action(ctx, *item, transition, tasks[transition.task_id])

    rows = await ctx.map(items, work, "actions", cost)
    mine = [row for row in rows if row.place == "state"]
    return Output(
        tables={"sampled_actions": rows},
        rows_in=len(samples),
        metrics={
            "valid_share": sum(row.status == "ok" for row in mine) / max(len(mine), 1),
            "action_entropy": action_entropy(row.action for row in mine),
        },
    )


async def sampled_action(
    ctx: StageContext,
    sample: ReplaySample,
    place: Place,
    number: int,
    transition: DrawnTransition,
    task: Task,
) -> SampledAction:
    """One action. At s it has to be one that the environment accepts; at s' any text is what the policy would do."""
    action_id = f"{sample.sample_id}/{place}/{number}"
    state = transition.state if place == "state" else transition.next_state
    uniform = ctx.config.rollout.uniform_share(ctx.iteration, explores=False)
    answer, action = await sample_action(ctx, state, adapter="policy", request_key=action_id, uniform=uniform)
    status, fault = "ok", None
    if answer.error or not answer.text:
        status, fault = "action_failed", answer.fault
    elif place == "state":
        status, fault = await accepted(ctx, state, task, action, action_id)
    return SampledAction(
        run=ctx.config.run,
        iteration=ctx.iteration,
        status=status,
        error=fault,
        action_id=action_id,
        sample_id=sample.sample_id,
        transition_id=sample.transition_id,
        place=place,
        action_text=answer.text,
        thought=label_thought(action.thought, ctx.config.roles.policy.line_limit),
        action=action.action,
        generation=answer.generation,
        reasoning=answer.reasoning,
    )


def _inputs(resolve: Resolver) -> Inputs:
    return Inputs(
        tables={"replay_samples": [resolve.replay_samples()], "transitions": resolve.replay()},
        adapters={"policy": resolve.policy()},
    )


def _bound(config: Config, algorithm: Algorithm) -> Bound:
    states = min(config.improvement.states, config.replay.transitions) + config.replay.transitions
    requests = states * config.improvement.actions
    note = f"{config.improvement.actions} actions in each of {states} states"
    return Bound(requests, requests * config.roles.policy.max_tokens, note)


STAGE = Stage(
    name="action-samples",
    version=1,
    pool="inference",
    reads=(ReplaySample, Transition),
    writes=(SampledAction,),
    config=(
        "environment",
        "improvement.states",
        "improvement.actions",
        "improvement.from_iteration",
        "rollout.uniform_until",
    ),
    roles=("policy",),
    templates=("policy",),
    inputs=_inputs,
    bound=_bound,
    run=action_samples,
    item=SampledAction,
)
