"""Stage refinement: turn the critiqued actions of a state into the action to distil, by the algorithm's way of
improving: refined by the critique, or the best of n."""

from schemas.config import Config
from schemas.rows import Critique, Future, Refinement, Transition
from storage.history import State
from tasks.datasets.drawn_transitions import DrawnCosts, load_drawn
from tasks.environments.base import tasks_by_id
from tasks.improvement.distillation import cap_rows
from tasks.improvement.refine import Improved
from tasks.measures.entropy import action_entropy
from tasks.runtime.algorithm import Algorithm
from tasks.runtime.context import StageContext
from tasks.runtime.lineage import Resolver
from tasks.runtime.stage import Bound, Inputs, Output, Stage, StageFailed
from tasks.seeding import derive_seed


async def refinement(ctx: StageContext) -> Output:
    """Improve the action of every critiqued state.

    Raises:
        StageFailed: no critique is usable.
    """
    critiques: list[Critique] = [c for c in ctx.inputs.rows("critiques") if c.status == "ok"]
    if not critiques:
        raise StageFailed('no critique is usable; look at: nlac sql "select status, error from critiques"')
    futures: dict[str, list[str]] = {}
    for future in ctx.inputs.rows("futures"):
        futures.setdefault(future.critique_id, []).append(future.description)
    states: dict[str, list[Critique]] = {}
    for row in critiques:
        states.setdefault(row.sample_id, []).append(row)
    costs, cap = (
        DrawnCosts(ctx.inputs, (c.transition_id for c in critiques)),
        ctx.config.improvement.max_rows_per_action,
    )

    def cost(tried: list[Critique]) -> float:
        return sum(costs.text(c.transition_id) for c in tried)

    here = (
        states.values() if cap is not None else ctx.dealt(states.values(), cost)
    )  # a cap looks at all states
    transitions = load_drawn(ctx.inputs, (tried[0].transition_id for tried in here))
    tasks = tasks_by_id(ctx.environment, {t.task_id for t in transitions.values()})

    async def work(tried: list[Critique]) -> Improved:
        transition = transitions[tried[0].transition_id]
        task = tasks[transition.task_id]
        return await ctx.algorithm.improves.method.improve(ctx, tried, transition, task, futures)

    done = await ctx.map(states.values(), work, "states", cost)

    def state(row: Refinement) -> State | str:
        """What the policy sees; in a Markov environment the last observation alone."""
        found = transitions[row.transition_id].state
        return found.observation if ctx.environment.markov else found

    rows = cap_rows(
        [r for d in done for r in d.refinements],
        state,
        cap,
        derive_seed(ctx.config.seed, "distilled-rows", ctx.iteration),
    )
    distilled = [r for r in rows if r.distil]
    return Output(
        tables={
            "refinements": rows,
            "critiques": [c for d in done for c in d.critiques],
            "futures": [f for d in done for f in d.futures],
        },
        rows_in=len(states),
        metrics={
            "distilled_share": len(distilled) / len(done),
            "changed_share": sum(r.changed for r in distilled) / max(len(distilled), 1),
            "valid_share": sum(any(r.valid for r in d.refinements) for d in done) / len(done),
            "surplus_rows": float(sum(r.distil_reason == "surplus" for r in rows)),
            "action_entropy": action_entropy(c.action for c in critiques),
            "distilled_action_entropy": action_entropy(r.action for r in distilled),
        },
    )


def _inputs(resolve: Resolver) -> Inputs:
    here = resolve.here("critique")
    return Inputs(
        tables={"critiques": [here], "futures": [here], "transitions": resolve.replay()},
        adapters={**resolve.successor(), "refiner": resolve.refiner()},
    )


def _bound(config: Config, algorithm: Algorithm) -> Bound:
    return algorithm.improves.method.bound(config, algorithm)


STAGE = Stage(
    name="refinement",
    version=9,
    pool="inference",
    reads=(Critique, Future, Transition),
    writes=(Refinement, Critique, Future),
    config=(
        "algorithm",
        "environment",
        "correction",
        "improvement.futures",
        "improvement.rounds",
        "improvement.verdict",
        "improvement.require_gain",
        "improvement.max_rows_per_action",
        "rollout.max_steps",
        "rollout.uniform_until",
    ),
    roles=("policy", "predict", "evaluate", "refine", "correct"),
    templates=("policy", "predict", "evaluate", "refine", "choose", "correct_thought"),
    inputs=_inputs,
    bound=_bound,
    run=refinement,
    item=Improved,
)
