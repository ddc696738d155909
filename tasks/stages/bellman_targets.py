"""Stage bellman-targets: draw transitions from replay and write, for each, the backup d ~
B(.|s,a,r,s',a',d').

Its metrics tell how often a transition in replay has been drawn so far, on average, and the share never drawn.

Not done: a' ~ pi(.|s') by the current policy, d' ~ M_target(.|s',a'), then B, both with the target
parameters. Done: B writes the description from r and s' alone. A truncated step is not done: it bootstraps
from s'. With `backup.draws` J > 1, J - 1 further (a', d') are drawn beside the one that the description is written
from: cot-correction scores the label under all of them. With J = 0 there is no bootstrap: B writes from r and s' alone.
"""

import asyncio

from schemas.config import Config
from schemas.rows import (
    BellmanTarget,
    BootstrapDraw,
    DrawnText,
    Generation,
    Priority,
    ReplaySample,
    Transition,
)
from storage.history import State
from tasks.datasets.drawn_transitions import (
    DrawnCosts,
    DrawnTransition,
    draw_samples,
    load_drawn,
    measure_replay,
)
from tasks.roles.backup import backup_inputs, write_backup
from tasks.roles.policy import sample_action
from tasks.roles.successor import predict_futures
from tasks.runtime.algorithm import Algorithm
from tasks.runtime.context import StageContext
from tasks.runtime.lineage import Resolver
from tasks.runtime.stage import Bound, Inputs, Output, Stage


async def bellman_targets(ctx: StageContext) -> Output:
    """Draw `replay.transitions` transitions and back each up once."""
    samples = draw_samples(ctx)
    costs, going_on = (
        DrawnCosts(ctx.inputs, (s.transition_id for s in samples)),
        1 + 2 * ctx.config.backup.draws,
    )

    def cost(sample: ReplaySample) -> float:
        texts = 1 if costs.ends(sample.transition_id) else going_on
        return texts * costs.text(sample.transition_id)

    transitions = load_drawn(ctx.inputs, (s.transition_id for s in ctx.dealt(samples, cost)))

    async def back_up(sample: ReplaySample) -> BellmanTarget:
        return await bellman_target(ctx, sample, transitions[sample.transition_id])

    targets = await ctx.map(samples, back_up, "targets", cost)
    written = [t for t in targets if t.description]
    return Output(
        tables={"replay_samples": list(samples), "bellman_targets": list(targets)},
        rows_in=len(samples),
        metrics={
            **measure_replay(ctx, samples),
            "terminal_share": sum(t.terminal for t in targets) / len(targets),
            "malformed_share": sum(t.malformed for t in written) / max(len(written), 1),
        },
    )


async def bellman_target(
    ctx: StageContext, sample: ReplaySample, transition: DrawnTransition
) -> BellmanTarget:
    """One language Bellman backup; a failed request, an empty text, or one that is no label is a row with a status."""
    key = sample.sample_id
    row = BellmanTarget(
        run=ctx.config.run,
        iteration=ctx.iteration,
        target_id=key,
        sample_id=key,
        transition_id=sample.transition_id,
        terminal=transition.done,
        thought="",
        description="",
        malformed=False,
    )
    if not transition.done and ctx.config.backup.draws:
        numbers = ("", *(f"/{n}" for n in range(1, ctx.config.backup.draws)))
        row, *others = await asyncio.gather(
            *(draw_next(ctx, row, transition.next_state, f"{key}{number}") for number in numbers)
        )
        row = row.model_copy(update={"other_draws": [_other_draw(other) for other in others] or None})
        if row.status != "ok":
            return row
    answer, described = await write_backup(
        ctx, backup_inputs(row, transition), adapter="target", request_key=f"{key}/b"
    )
    row = row.model_copy(
        update={
            "thought": described.thought,
            "description": described.description,
            "malformed": described.malformed,
            "generation": answer.generation,
            "reasoning": answer.reasoning,
        }
    )
    if answer.error or not described.description:
        return _failed(row, "backup_failed", answer.fault)
    return _failed(row, "malformed", described.fault) if described.fault else row


async def draw_next(ctx: StageContext, row: BellmanTarget, after: State, request_key: str) -> BellmanTarget:
    """A row with a' ~ pi(.|s') and d' ~ M_target(.|s',a'), whose random streams `request_key` keys."""
    uniform = ctx.config.rollout.uniform_share(ctx.iteration, explores=False)
    acted, action = await sample_action(
        ctx, after, adapter="policy", request_key=f"{request_key}/a", uniform=uniform
    )
    row = row.model_copy(
        update={
            "next_thought": action.thought,
            "next_action": action.action,
            "next_action_text": acted.text,
            "next_action_generation": acted.generation,
            "next_action_reasoning": acted.reasoning,
        }
    )
    if acted.error or not acted.text:
        return _failed(row, "next_action_failed", acted.fault)
    [(foreseen, future)] = await predict_futures(
        ctx, after, acted.text, 1, adapter="target", request_key=f"{request_key}/d"
    )
    row = row.model_copy(
        update={
            "next_future": future.description,
            "next_future_malformed": future.malformed,
            "next_future_generation": foreseen.generation,
            "next_future_reasoning": foreseen.reasoning,
        }
    )
    if foreseen.error or not future.description:
        return _failed(row, "next_future_failed", foreseen.fault)
    return row


def _other_draw(row: BellmanTarget) -> BootstrapDraw:
    shared = BootstrapDraw.model_fields.keys() & BellmanTarget.model_fields.keys()
    return BootstrapDraw(
        **row.model_dump(include=set(shared)),
        fault=row.error,
        next_action_drawn=_drawn(row.next_action_generation),
        next_future_drawn=_drawn(row.next_future_generation),
    )


def _drawn(made: Generation | None) -> DrawnText | None:
    return None if made is None else DrawnText(**{n: getattr(made, n) for n in DrawnText.model_fields})


def _failed(row: BellmanTarget, status: str, error: str) -> BellmanTarget:
    return row.model_copy(update={"status": status, "error": error})


def _inputs(resolve: Resolver) -> Inputs:
    return Inputs(
        tables={
            "transitions": resolve.replay(drawing=True),
            "priorities": resolve.upto("critic-sft", resolve.iteration - 1),
            "replay_samples": resolve.upto("bellman-targets", resolve.iteration - 1),
        },
        adapters={"policy": resolve.policy(), "target": resolve.target()},
    )


def _bound(config: Config, algorithm: Algorithm) -> Bound:
    roles, drawn, draws = config.roles, config.replay.transitions, config.backup.draws
    tokens = draws * (roles.policy.max_tokens + roles.predict.max_tokens) + roles.bootstrap.max_tokens
    note = "a', d' and the backup of each draw; terminal ones need the backup alone"
    return Bound((1 + 2 * draws) * drawn, tokens * drawn, note)


STAGE = Stage(
    name="bellman-targets",
    version=5,
    pool="inference",
    reads=(Transition, Priority, ReplaySample),
    writes=(ReplaySample, BellmanTarget),
    config=("environment", "replay", "rollout.uniform_until", "backup.draws"),
    roles=("policy", "predict", "bootstrap"),
    templates=("policy", "predict", "bootstrap"),
    inputs=_inputs,
    bound=_bound,
    run=bellman_targets,
    item=BellmanTarget,
)
