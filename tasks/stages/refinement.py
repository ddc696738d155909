"""Stage refinement: a_r ~ pi_r(.|s, earlier (action, critique) pairs), its thought corrected, its validity
checked.

An action judged optimal is kept without a call: it anchors the policy where it is good. With m > 1 rounds each
refinement is critiqued and refined again, and after the last critique a final choice picks among the tried
actions. A refinement that the environment would not accept, or whose verdict can't be read, ends the rounds:
the choice is among those before it, and where there is none nothing is distilled. Algorithm nlql refines
nothing: the best of its sampled actions is the proposal (`tasks.improvement.best_of_n`).
"""

from schemas.rows import Critique, Future, Refinement
from tasks.datasets.drawn_transitions import load_drawn
from tasks.environments.base import tasks_by_id
from tasks.improvement.best_of_n import best_action
from tasks.improvement.refine import Improvement, Refiner
from tasks.runtime.context import StageContext
from tasks.runtime.stage import Inputs, Output, Resolver, Stage, StageFailed


async def refinement(ctx: StageContext, inputs: Inputs) -> Output:
    """Improve every judged action.

    Raises:
        StageFailed: no critique is usable.
    """
    judged: list[Critique] = [c for c in inputs.rows("critiques") if c.status == "ok"]
    if not judged:
        raise StageFailed('no critique is usable; look at: nlac sql "select status, error from critiques"')
    futures: dict[str, list[str]] = {}
    for future in inputs.rows("futures"):
        futures.setdefault(future.critique_id, []).append(future.description)
    groups: dict[str, list[Critique]] = {}
    for row in judged:
        groups.setdefault(row.sample_id, []).append(row)
    transitions = load_drawn(inputs, (c.transition_id for c in judged))
    tasks = tasks_by_id(ctx.environment, {t.task_id for t in transitions.values()})

    async def work(group: list[Critique]) -> Improvement:
        transition = transitions[group[0].transition_id]
        task = tasks[transition.task_id]
        if ctx.config.algorithm == "nlql":
            return Improvement([await best_action(ctx, group, transition.state, task)])
        (critique,) = group
        return await Refiner(ctx, critique, transition, task, futures[critique.critique_id]).run()

    done = await ctx.map(groups.values(), work, "states")
    finals = [next((r for r in d.refinements if r.distil), None) for d in done]
    distilled = [r for r in finals if r is not None]
    return Output(
        tables={
            "refinements": [r for d in done for r in d.refinements],
            "critiques": [c for d in done for c in d.critiques],
            "futures": [f for d in done for f in d.futures],
        },
        rows_in=len(groups),
        metrics={
            "distilled_share": len(distilled) / len(done),
            "changed_share": sum(r.changed for r in distilled) / max(len(distilled), 1),
            "valid_share": sum(any(r.valid for r in d.refinements) for d in done) / len(done),
        },
    )


def _inputs(resolve: Resolver) -> Inputs:
    here = resolve.here("critique")
    return Inputs(
        tables={
            "critiques": [here],
            "futures": [here],
            "transitions": resolve.replay(),
        },
        adapters={**resolve.successor(), "refiner": resolve.refiner()},
    )


STAGE = Stage(
    name="refinement",
    version=7,
    pool="inference",
    tables=(Refinement, Critique, Future),
    config=(
        "algorithm",
        "environment",
        "correction",
        "improvement.futures",
        "improvement.rounds",
        "rollout.max_steps",
        "rollout.uniform_until",
    ),
    roles=("policy", "predict", "evaluate", "refine", "correct"),
    templates=("policy", "predict", "evaluate", "refine", "choose", "correct_thought"),
    inputs=_inputs,
    run=refinement,
)
