"""Stage bellman-targets: draw transitions from replay and write, for each, the backup d ~
B(.|s,a,r,s',a',d').

Not done: a' ~ pi(.|s') by the current policy, d' ~ M_target(.|s',a'), then B, both with the target
parameters. Done: B writes the description from r and s' alone. A truncated step is not done: it bootstraps
from s'. With `backup.draws` J > 1, J - 1 further (a', d') are drawn beside the one that the description is written
from: cot-correction scores the label under all of them. With J = 0 there is no bootstrap: B writes from r and s' alone.
"""

import asyncio
from dataclasses import replace

from schemas.rows import BellmanTarget, BootstrapDraw, DrawnText, Generation, ReplaySample
from storage.history import State
from storage.replay import Draw, draw_replay
from tasks.datasets.drawn_transitions import DrawnTransition, load_drawn
from tasks.roles.calls import BackupInputs, predict_futures, sample_action, write_backup
from tasks.runtime.context import StageContext
from tasks.runtime.stage import Inputs, Output, Resolver, Stage, StageFailed
from tasks.seeding import derive_seed


async def bellman_targets(ctx: StageContext, inputs: Inputs) -> Output:
    """Draw `replay.transitions` transitions and back each up once."""
    samples = draw_samples(ctx, inputs)
    transitions = load_drawn(inputs, (s.transition_id for s in samples))

    async def write_backup(sample: ReplaySample) -> BellmanTarget:
        return await bellman_target(ctx, sample, transitions[sample.transition_id])

    targets = await ctx.map(samples, write_backup, "targets")
    usable = [t for t in targets if t.status == "ok"]
    return Output(
        tables={"replay_samples": list(samples), "bellman_targets": list(targets)},
        rows_in=len(samples),
        metrics={
            "terminal_share": sum(t.terminal for t in targets) / len(targets),
            "malformed_share": sum(t.malformed for t in usable) / max(len(usable), 1),
        },
    )


def draw_samples(ctx: StageContext, inputs: Inputs) -> list[ReplaySample]:
    """The iteration's replay draw, as rows.

    Raises:
        StageFailed: there is nothing to draw from.
    """
    section = ctx.config.replay
    try:
        draw: Draw = draw_replay(
            inputs.scan("transitions"),
            inputs.scan("priorities") if inputs.tables.get("priorities") else None,
            count=section.transitions,
            alpha=section.alpha,
            beta=section.beta,
            epsilon=section.epsilon,
            seed=derive_seed(ctx.config.seed, "replay", ctx.iteration),
        )
    except ValueError as error:
        raise StageFailed(f'{error}; look at: nlac sql "select status, error from episodes"') from error
    return [
        ReplaySample(
            run=ctx.config.run,
            iteration=ctx.iteration,
            sample_id=f"{ctx.config.run}/{ctx.iteration:05d}/{number:06d}",
            transition_id=draw.ids[number],
            draw=number,
            priority=draw.priority[number],
            scored=draw.scored[number],
            priority_kind=draw.kind if draw.scored[number] else None,
            probability=draw.probability[number],
            weight=draw.weight[number],
        )
        for number in range(section.transitions)
    ]


async def bellman_target(
    ctx: StageContext, sample: ReplaySample, transition: DrawnTransition
) -> BellmanTarget:
    """One language Bellman backup; a failed request or an empty text is a row with a status."""
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
    return row


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
    return made and DrawnText(**{name: getattr(made, name) for name in DrawnText.model_fields})


def _failed(row: BellmanTarget, status: str, error: str) -> BellmanTarget:
    return row.model_copy(update={"status": status, "error": error})


def backup_inputs(target: BellmanTarget, transition: DrawnTransition) -> BackupInputs:
    """What the backup of a target read; the correction stage needs the same."""
    return BackupInputs(
        state=transition.state,
        action_text=transition.text,
        next_observation=transition.next_observation,
        reward=transition.reward,
        terminal=transition.done,
        next_action_text=None if transition.done else target.next_action_text,
        next_future=None if transition.done else target.next_future,
    )


def other_backup_inputs(target: BellmanTarget, transition: DrawnTransition) -> list[BackupInputs]:
    """What it would have read with each other (a', d') that was drawn; those that failed are left out."""
    read = backup_inputs(target, transition)
    return [
        replace(read, next_action_text=draw.next_action_text, next_future=draw.next_future)
        for draw in target.other_draws or ()
        if draw.status == "ok"
    ]


def _inputs(resolve: Resolver) -> Inputs:
    return Inputs(
        tables={
            "transitions": resolve.replay(drawing=True),
            "priorities": resolve.upto("critic-sft", resolve.iteration - 1),
        },
        adapters={"policy": resolve.policy(), "target": resolve.target()},
    )


STAGE = Stage(
    name="bellman-targets",
    version=4,
    pool="inference",
    tables=(ReplaySample, BellmanTarget),
    config=("environment", "replay", "rollout.uniform_until", "backup.draws"),
    roles=("policy", "predict", "bootstrap"),
    templates=("policy", "predict", "bootstrap"),
    inputs=_inputs,
    run=bellman_targets,
)
