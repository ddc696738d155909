"""Stage critique: at the states of drawn transitions take an action to improve, foresee k futures, and
judge it.

Algorithm self_distillation plays the futures instead (`tasks.improvement.monte_carlo`); nlql takes several actions at
a state and has the verdict scored (`tasks.improvement.best_of_n`).
"""

import random
from collections.abc import Sequence

from schemas.rows import Critique, Future, ReplaySample
from tasks.datasets.drawn_transitions import DrawnTransition, load_drawn
from tasks.environments.base import tasks_by_id
from tasks.improvement.critique import Candidate, CritiquedAction, critique_action, numbered
from tasks.roles.calls import sample_action
from tasks.runtime.context import StageContext
from tasks.runtime.stage import Inputs, Output, Resolver, Stage
from tasks.seeding import derive_seed
from tasks.text.formats import Action


async def critique(ctx: StageContext, inputs: Inputs) -> Output:
    """Judge one action (nlql: `improvement.actions`) at each of at most `improvement.states` drawn transitions (one
    per transition drawn)."""
    samples = choose_states(ctx, inputs.rows("replay_samples"))
    transitions = load_drawn(inputs, (s.transition_id for s in samples))
    tasks = tasks_by_id(ctx.environment, {t.task_id for t in transitions.values()})

    async def work(sample: ReplaySample, number: int | None) -> CritiquedAction:
        transition = transitions[sample.transition_id]
        candidate = await action_to_improve(ctx, sample, transition, number)
        task = tasks[transition.task_id]
        return await critique_action(ctx, sample.sample_id, transition, task, candidate, 0, number)

    several = ctx.config.algorithm == "nlql"
    numbers: Sequence[int | None] = range(ctx.config.improvement.actions) if several else [None]
    items = [(sample, number) for sample in samples for number in numbers]
    judged = await ctx.map(items, lambda item: work(*item), "actions")
    verdicts = [j.critique.optimal for j in judged]
    return Output(
        tables={
            "critiques": [j.critique for j in judged],
            "futures": [f for j in judged for f in j.futures],
        },
        rows_in=len(items),
        metrics={
            "optimal_share": sum(v is True for v in verdicts) / max(len(verdicts), 1),
            "unreadable_share": sum(v is None for v in verdicts) / max(len(verdicts), 1),
        },
    )


def choose_states(ctx: StageContext, samples: list[ReplaySample]) -> list[ReplaySample]:
    """A random part of the draw, each transition at most once, in drawn order."""
    first = list({s.transition_id: s for s in reversed(samples)}.values())[::-1]
    stream = random.Random(derive_seed(ctx.config.seed, "improvement-states", ctx.iteration))
    chosen = stream.sample(first, min(ctx.config.improvement.states, len(first)))
    return sorted(chosen, key=lambda s: s.draw)


async def action_to_improve(
    ctx: StageContext, sample: ReplaySample, transition: DrawnTransition, number: int | None = None
) -> Candidate:
    """A fresh a ~ pi(.|s), the `number`-th where there are several, or the replayed action."""
    if ctx.config.improvement.action == "replayed":
        parsed = Action(transition.thought, transition.action, transition.action_valid)
        return Candidate("replayed", transition.text, parsed, None)
    uniform = ctx.config.rollout.uniform_share(ctx.iteration, explores=False)
    request_key = numbered(f"{sample.sample_id}/a", number)
    answer, parsed = await sample_action(
        ctx, transition.state, adapter="actor", request_key=request_key, uniform=uniform
    )
    return Candidate("fresh", answer.text, parsed, answer.generation, answer.error, answer.reasoning)


def _inputs(resolve: Resolver) -> Inputs:
    return Inputs(
        tables={
            "replay_samples": [resolve.replay_samples()],
            "transitions": resolve.replay(),
        },
        adapters={"actor": resolve.actor(), **resolve.successor(), "refiner": resolve.refiner()},
    )


STAGE = Stage(
    name="critique",
    version=5,
    pool="inference",
    tables=(Critique, Future),
    config=(
        "algorithm",
        "environment",
        "improvement.states",
        "improvement.action",
        "improvement.actions",
        "improvement.futures",
        "rollout.max_steps",
        "rollout.uniform_until",
    ),
    roles=("policy", "predict", "evaluate"),
    templates=("policy", "predict", "evaluate"),
    inputs=_inputs,
    run=critique,
)
