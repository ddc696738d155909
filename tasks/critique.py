"""Stage critique: at the states of drawn transitions take an action to improve, foresee k futures, and
judge it."""

import asyncio
import random
from dataclasses import dataclass
from typing import Literal

from schemas.rows import Critique, Future, Generation, ReplaySample
from storage.history import State
from tasks.context import StageContext
from tasks.formats import Action
from tasks.replayed import Replayed, load_replayed
from tasks.roles import judge, predict_future, sample_action
from tasks.seeding import derive_seed
from tasks.stage import Inputs, Output, Resolver, Stage


@dataclass(frozen=True)
class Candidate:
    """An action to be judged."""

    source: Literal["fresh", "replayed", "refined"]
    text: str
    parsed: Action
    generation: Generation | None
    error: str | None = None


@dataclass(frozen=True)
class Judgement:
    """A critique and the futures it read."""

    critique: Critique
    futures: list[Future]


async def critique(ctx: StageContext, inputs: Inputs) -> Output:
    """Judge one action at each of at most `improvement.states` drawn transitions (one per transition
    drawn)."""
    samples = choose_states(ctx, inputs.rows("replay_samples"))
    transitions = load_replayed(inputs, (s.transition_id for s in samples))

    async def work(sample: ReplaySample) -> Judgement:
        transition = transitions[sample.transition_id]
        candidate = await action_to_improve(ctx, sample, transition)
        return await judge_action(ctx, sample.sample_id, sample.transition_id, transition.state, candidate, 0)

    judged = await ctx.map(samples, work, "actions")
    verdicts = [j.critique.optimal for j in judged]
    return Output(
        tables={
            "critiques": [j.critique for j in judged],
            "futures": [f for j in judged for f in j.futures],
        },
        rows_in=len(samples),
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


async def action_to_improve(ctx: StageContext, sample: ReplaySample, transition: Replayed) -> Candidate:
    """A fresh a ~ pi(.|s), or the replayed action."""
    if ctx.config.improvement.action == "replayed":
        parsed = Action(transition.thought, transition.action, transition.action_valid)
        return Candidate("replayed", transition.text, parsed, None)
    answer, parsed = await sample_action(ctx, transition.state, use="actor", item=f"{sample.sample_id}/a")
    return Candidate("fresh", answer.text, parsed, answer.generation, answer.error)


async def judge_action(
    ctx: StageContext, sample_id: str, transition_id: str, state: State, candidate: Candidate, round_: int
) -> Judgement:
    """Sample d1..dk ~ M_theta(.|s,a) with the new critic, then q ~ E(.|s,a,d1..dk).

    A failed request or a verdict that can't be read is a row with a status.
    """
    critique_id = f"{sample_id}/c/{round_}"
    row = Critique(
        run=ctx.config.run,
        iteration=ctx.iteration,
        critique_id=critique_id,
        sample_id=sample_id,
        transition_id=transition_id,
        round=round_,
        action_source=candidate.source,
        action_text=candidate.text,
        thought=candidate.parsed.thought,
        action=candidate.parsed.action,
        critique="",
        action_generation=candidate.generation,
    )
    if candidate.error or not candidate.text:
        return Judgement(_failed(row, "action_failed", candidate.error or "the policy wrote nothing"), [])
    futures = await asyncio.gather(
        *(_foresee(ctx, critique_id, state, candidate.text, n) for n in range(ctx.config.improvement.futures))
    )
    texts = [f.description for f in futures if f.status == "ok"]
    if not texts:
        return Judgement(_failed(row, "no_future", futures[0].error or "no future"), list(futures))
    judged, verdict = await judge(ctx, state, candidate.text, texts, use="improver", item=critique_id)
    row = row.model_copy(
        update={"optimal": verdict.optimal, "critique": verdict.reason, "generation": judged.generation}
    )
    if judged.error:
        return Judgement(_failed(row, "engine_error", judged.error), list(futures))
    if verdict.optimal is None:
        return Judgement(
            _failed(row, "unreadable_verdict", "neither 'Optimal: yes' nor 'Optimal: no'"), list(futures)
        )
    return Judgement(row, list(futures))


async def _foresee(
    ctx: StageContext, critique_id: str, state: State, action_text: str, number: int
) -> Future:
    answer, described = await predict_future(
        ctx, state, action_text, use="critic", item=critique_id, sample=number
    )
    empty = answer.error is None and not described.description
    return Future(
        run=ctx.config.run,
        iteration=ctx.iteration,
        status="empty" if empty else answer.status,
        error="the model wrote nothing" if empty else answer.error,
        future_id=f"{critique_id}/f/{number}",
        critique_id=critique_id,
        thought=described.thought,
        description=described.description,
        malformed=described.malformed,
        generation=answer.generation,
    )


def _failed(row: Critique, status: str, error: str) -> Critique:
    return row.model_copy(update={"status": status, "error": error})


def _inputs(resolve: Resolver) -> Inputs:
    return Inputs(
        tables={
            "replay_samples": [resolve.here("bellman-targets")],
            "transitions": resolve.upto("rollout", resolve.iteration),
        },
        adapters={"actor": resolve.actor(), "critic": resolve.critic(), "improver": resolve.improver()},
    )


STAGE = Stage(
    name="critique",
    version=1,
    pool="inference",
    tables=(Critique, Future),
    config=("environment", "improvement.states", "improvement.action", "improvement.futures"),
    roles=("policy", "predict", "evaluate"),
    templates=("policy", "predict", "evaluate"),
    inputs=_inputs,
    run=critique,
)
