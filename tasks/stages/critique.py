"""Stage critique: at the states of drawn transitions, take an action to improve, draw its futures, and have the
evaluator critique it.

The algorithm says how many actions are taken at a state, where futures come from, and how the verdict is read.
"""

from schemas.config import Config
from schemas.rows import Critique, Future, ReplaySample, Transition
from tasks.datasets.drawn_transitions import DrawnCosts, DrawnTransition, choose_states, load_drawn
from tasks.environments.base import tasks_by_id
from tasks.improvement.critique import Candidate, CritiquedAction, critique_action, numbered
from tasks.measures.entropy import action_entropy
from tasks.roles.policy import sample_action
from tasks.runtime.algorithm import Algorithm
from tasks.runtime.context import StageContext
from tasks.runtime.lineage import Resolver
from tasks.runtime.stage import Bound, Inputs, Output, Stage
from tasks.text.formats import Action


async def critique(ctx: StageContext) -> Output:
    """Critique the actions at no more than `improvement.states` drawn transitions, each transition once."""
    samples = choose_states(ctx, ctx.inputs.rows("replay_samples"))
    numbers = ctx.algorithm.improves.method.actions(ctx.config)
    items = [(sample, number) for sample in samples for number in numbers]
    costs = DrawnCosts(ctx.inputs, (s.transition_id for s in samples))

    def cost(item: tuple[ReplaySample, int | None]) -> float:
        return costs.text(item[0].transition_id)

    transitions = load_drawn(ctx.inputs, (s.transition_id for s, _ in ctx.dealt(items, cost)))
    tasks = tasks_by_id(ctx.environment, {t.task_id for t in transitions.values()})

    async def work(numbered_sample: tuple[ReplaySample, int | None]) -> CritiquedAction:
        sample, number = numbered_sample
        transition = transitions[sample.transition_id]
        candidate = await action_to_improve(ctx, sample, transition, number)
        task = tasks[transition.task_id]
        return await critique_action(ctx, sample.sample_id, transition, task, candidate, 0, number)

    critiqued = await ctx.map(items, work, "actions", cost)
    rows = [c.critique for c in critiqued]
    return Output(
        tables={
            "critiques": rows,
            "futures": [f for c in critiqued for f in c.futures],
        },
        rows_in=len(items),
        metrics={
            "optimal_share": sum(row.status == "ok" and row.optimal is True for row in rows)
            / max(len(rows), 1),
            "unreadable_share": sum(row.status != "ok" for row in rows) / max(len(rows), 1),
            "action_entropy": action_entropy(row.action for row in rows),
        },
    )


async def action_to_improve(
    ctx: StageContext, sample: ReplaySample, transition: DrawnTransition, number: int | None = None
) -> Candidate:
    """A fresh a ~ pi(.|s), the `number`-th where there are several, or the transition's own action."""
    if ctx.config.improvement.action == "replayed":
        parsed = Action(transition.thought, transition.action, transition.action_valid)
        own, hidden = transition.generation, transition.reasoning
        return Candidate("replayed", transition.text, parsed, own, reasoning=hidden)
    uniform = ctx.config.rollout.uniform_share(ctx.iteration, explores=False)
    key = numbered(f"{sample.sample_id}/a", number)
    answer, parsed = await sample_action(
        ctx, transition.state, adapter="actor", request_key=key, uniform=uniform
    )
    return Candidate("fresh", answer.text, parsed, answer.generation, answer.error, answer.reasoning)


def _inputs(resolve: Resolver) -> Inputs:
    return Inputs(
        tables={"replay_samples": [resolve.replay_samples()], "transitions": resolve.replay()},
        adapters={"actor": resolve.actor(), **resolve.successor(), "refiner": resolve.refiner()},
    )


def _bound(config: Config, algorithm: Algorithm) -> Bound:
    how, roles = algorithm.improves, config.roles
    states = min(config.improvement.states, config.replay.transitions)
    actions = states * len(how.method.actions(config))
    futures = algorithm.future_count(config)
    requests = futures * how.futures.requests(config)
    tokens = (
        roles.policy.max_tokens
        + requests * config.role(how.futures.role).max_tokens
        + how.verdict.requests * roles.evaluate.max_tokens
    )
    note = f"{actions} actions, {futures} futures and a verdict of each"
    verdict = how.verdict.requests + how.verdict.scores(config)
    return Bound(actions * (1 + requests + verdict), actions * tokens, note)


STAGE = Stage(
    name="critique",
    version=7,
    pool="inference",
    reads=(ReplaySample, Transition),
    writes=(Critique, Future),
    config=(
        "algorithm",
        "environment",
        "improvement.states",
        "improvement.action",
        "improvement.actions",
        "improvement.futures",
        "improvement.verdict",
        "rollout.max_steps",
        "rollout.uniform_until",
    ),
    roles=("policy", "predict", "evaluate"),
    templates=("policy", "predict", "evaluate", "aggregate"),
    inputs=_inputs,
    bound=_bound,
    run=critique,
    item=CritiquedAction,
)
