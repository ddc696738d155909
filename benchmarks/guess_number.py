"""NLAC with one small language model in every role: GuessTheNumber after a warm start, against no NLAC.

    python -m benchmarks.guess_number [--minutes 60] [--data DIR]

Runs configs/guess_number_smollm2.yaml in this process through the program's own stages: demonstrations from random
play, the warm start, its policy evaluated (algorithm react), then as many iterations as are begun before the minutes
are over, evaluations included; started again, it goes on. Each policy plays the same games with the same seeds. What
is printed, and written to benchmarks/out/guess_number.json, is a table without bars: a null result is a result.
"""

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import comb
from pathlib import Path
from typing import Annotated

import polars as pl
import typer

from benchmarks.checks import OUT, machine, write_checks
from benchmarks.lake_run import measuring
from schemas.config import Config
from schemas.load import load_config
from storage.history import State, rebuild_states
from storage.store import Committed, Store, scan_parts
from tasks.context import StageContext
from tasks.environments.base import ActionFormat
from tasks.environments.guess_number import HINT, Span, demonstrations
from tasks.formats import read_action
from tasks.iterations import begin_iteration, run_iteration
from tasks.leaks import SOURCE_OF_TARGET, find_leaks
from tasks.pipeline import stages_of
from tasks.roles import predict_futures
from tasks.running import run_stage

CONFIG = "configs/guess_number_smollm2.yaml"
NUMBER = re.compile(r"\[(\d+)\]")
JUDGED = 128
ROWS = 160  # demonstrations of each role


@dataclass
class Measured:
    """A policy and its critic.

    Attributes:
        name: the run's iteration, or "warm start".
        success, low, high: rate over the evaluation games, with its 95% Wilson interval.
        invalid: share of actions that the game refused or that did not parse.
        turns: mean actions a game.
        possible: share of actions that the hints had left possible; what a guess is worth, in many more numbers than
            games.
        won_alone, lost_alone: games that this policy wins and the warm-started one does not, and the reverse.
        p: two-sided exact McNemar test of those.
        hints: share of predicted futures that name the hint which then followed.
        best_hints: the share that naming the likelier hint would have got right.
        malformed: share of predicted futures without their format.
        drift, kl: of the policy from the base model on general prompts, nats a token (`tasks.retention`).
        label_next, label_future: shares of the words of this iteration's labels that come from s' or r alone and from
            d' alone (`tasks.discounting`); None for the warm start.
        optimal, changed: shares of judged actions that the evaluator calls optimal, and of distilled ones that
            refinement has changed; None likewise.
        judged_possible, distilled_possible: shares of the actions that were to be improved, and of those distilled,
            that the hints had left possible; None likewise.
        seconds: of its stages, the warm start (in iteration 0) and the evaluation included.
    """

    name: str
    success: float
    low: float
    high: float
    invalid: float
    turns: float
    possible: float
    won_alone: int
    lost_alone: int
    p: float
    hints: float
    best_hints: float
    malformed: float
    drift: float
    kl: float
    label_next: float | None
    label_future: float | None
    optimal: float | None
    changed: float | None
    judged_possible: float | None
    distilled_possible: float | None
    seconds: float


OF_STAGES = {
    "label_next": ("cot-correction", "discount_next"),
    "label_future": ("cot-correction", "discount_future"),
    "optimal": ("critique", "optimal_share"),
    "changed": ("refinement", "changed_share"),
}


def mcnemar(won: int, lost: int) -> float:
    """Two-sided exact p of `won` and `lost` discordant pairs under fair coins (McNemar 1947)."""
    pairs, fewer = won + lost, min(won, lost)
    tail: float = sum(comb(pairs, n) for n in range(fewer + 1)) / 2**pairs
    return min(1.0, 2 * tail)


def guessed(text: str, form: ActionFormat) -> int:
    """The number that a policy's text guesses, read as the game does: the first one in brackets of the action, whatever
    stands around it; 0 where there is none."""
    found = NUMBER.search(read_action(text, form).action)
    return int(found[1]) if found else 0


def left_by_hints(state: State, form: ActionFormat) -> Span:
    """The numbers that are still possible in a state; one that was tried never is."""
    span = Span()
    observations = [*(turn.observation for turn in state.turns[1:]), state.observation]
    for turn, seen in zip(state.turns, observations, strict=False):
        if hint := HINT.search(seen):
            span = span.after(guessed(turn.text, form), hint[1])
    return span


def likelier(span: Span, guess: int) -> str:
    """The likelier hint on a guess where these numbers are left, each as likely."""
    chances = {"higher": sum(n > guess for n in span), "lower": sum(n < guess for n in span)}
    return max(chances, key=lambda hint: chances[hint])


def possible_share(
    states: Mapping[str, State], actions: Sequence[tuple[str, str]], form: ActionFormat
) -> float:
    """Of actions (transition_id, whole text), the share whose guess the hints before it left possible."""
    found = [guessed(text, form) in left_by_hints(states[identity], form) for identity, text in actions]
    return sum(found) / len(found)


@dataclass(frozen=True)
class Fidelity:
    """What a critic foresees of steps that were played, one future each: shares of futures.

    Attributes:
        hints: that name the hint which then followed.
        best_hints: in which naming the likelier hint would have been right.
        malformed: without their format.
        asserted: whose thought asserts what then followed, or names a source it can't have read (docs/leaks.md).
    """

    hints: float
    best_hints: float
    malformed: float
    asserted: float


async def critic_fidelity(ctx: StageContext, played: Committed) -> Fidelity:
    """Ask about JUDGED steps that a hint followed on, drawn at random from an evaluation."""
    steps = played.scan("transitions").filter(pl.col("next_observation").str.contains(HINT.pattern)).collect()
    drawn = steps.sample(min(JUDGED, steps.height), seed=0)
    states = rebuild_states(played.scan("transitions"), drawn["transition_id"])
    rows = drawn.select("transition_id", "raw_action", "next_observation").rows()
    form = ctx.environment.action_format

    async def one(row: tuple[str, str, str]) -> tuple[bool, bool, bool, bool]:
        identity, text, seen = row
        state = states[identity]
        [(_, future)] = await predict_futures(ctx, state, text, 1, use="critic", item=identity)
        observations = [*(turn.observation for turn in state.turns[1:]), state.observation]
        best = likelier(left_by_hints(state, form), guessed(text, form))
        truth = HINT.search(seen)
        assert truth is not None
        leak = find_leaks(
            future.thought, privileged=(seen,), visible=(*observations, text), source=SOURCE_OF_TARGET
        )
        named = f"hint is {truth[1]}" in future.description
        return named, best == truth[1], future.malformed, leak.share > 0

    results = await asyncio.gather(*(one(row) for row in rows))
    return Fidelity(*(sum(column) / len(results) for column in zip(*results, strict=True)))


async def measure(
    store: Store, config: Config, iteration: int, baseline: dict[str, bool], name: str
) -> Measured:
    """One policy's evaluation and its critic's fidelity."""
    made = store.committed(config.run, "evaluation", iteration)
    assert made is not None
    row = made.scan("evaluations").collect().row(0, named=True)
    games = dict(made.scan("episodes").select("task_id", "success").collect().rows())
    won = sum(games[task] and not baseline[task] for task in games)
    lost = sum(baseline[task] and not games[task] for task in games)
    async with measuring(store, config, iteration) as ctx:
        critic = await critic_fidelity(ctx, made)
        form = ctx.environment.action_format
    steps = made.scan("transitions").select("transition_id", "raw_action").collect()
    states = rebuild_states(made.scan("transitions"), steps["transition_id"])
    found = {stage: store.committed(config.run, stage, iteration) for stage in stages_of(config, iteration)}
    stages = {stage: done.manifest for stage, done in found.items() if done}
    told = {
        name: stages[stage].metrics.get(metric) if stage in stages else None
        for name, (stage, metric) in OF_STAGES.items()
    }
    return Measured(
        name=name, success=row["success_rate"], low=row["success_low"], high=row["success_high"],
        invalid=row["invalid_action_rate"], turns=row["mean_turns"],
        possible=possible_share(states, steps.rows(), form), won_alone=won, lost_alone=lost,
        p=mcnemar(won, lost), hints=critic.hints, best_hints=critic.best_hints, malformed=critic.malformed,
        drift=made.manifest.metrics["retention_drift"], kl=made.manifest.metrics["retention_kl"],
        seconds=sum(manifest.seconds for manifest in stages.values()), **told,
        **improved_shares(store, config, iteration, form),
    )  # fmt: skip


def improved_shares(
    store: Store, config: Config, iteration: int, form: ActionFormat
) -> dict[str, float | None]:
    """`Measured.judged_possible` and `Measured.distilled_possible`."""
    critique, refinement = (
        store.committed(config.run, stage, iteration) for stage in ("critique", "refinement")
    )
    if critique is None or refinement is None:
        return {"judged_possible": None, "distilled_possible": None}
    judged = critique.scan("critiques").filter(pl.col("round") == 0)
    distilled = refinement.scan("refinements").filter("distil")
    played = [c for i in range(iteration + 1) if (c := store.committed(config.run, "rollout", i))]
    texts = {
        name: table.select("transition_id", "action_text").collect()
        for name, table in {"judged_possible": judged, "distilled_possible": distilled}.items()
    }
    wanted = pl.concat(texts.values())["transition_id"]
    states = rebuild_states(scan_parts(played, "transitions"), wanted)
    return {name: possible_share(states, rows.rows(), form) for name, rows in texts.items()}


def line(m: Measured) -> str:
    """A row of the table, as Markdown."""
    told = (m.label_next, m.label_future, m.optimal, m.changed, m.judged_possible, m.distilled_possible)
    stages = " | ".join("" if share is None else f"{share:.2f}" for share in told)
    return (
        f"| {m.name} | {m.success:.3f} ({m.low:.3f}-{m.high:.3f}) | {m.invalid:.3f} | {m.turns:.1f} | "
        f"{m.possible:.3f} | +{m.won_alone} -{m.lost_alone} (p {m.p:.2g}) | {m.hints:.2f} of {m.best_hints:.2f} | "
        f"{m.malformed:.2f} | {m.drift:.2f}, {m.kl:.2f} | {stages} | {m.seconds:.0f} |"
    )


COLUMNS = (
    "policy", "success", "invalid", "turns", "possible", "against warm start", "hints foreseen", "malformed",
    "drift, KL", "label from s'", "label from d'", "optimal", "changed", "possible, judged", "distilled", "seconds",
)  # fmt: skip
HEAD = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"


def configured(file: Path, **changes: object) -> Config:
    """The shipped configuration with these demonstrations."""
    content = load_config(CONFIG).model_dump()
    content["warm_start"]["file"] = str(file)
    return Config.model_validate({**content, **changes})


async def run_stages(store: Store, config: Config, stages: Sequence[str]) -> Committed:
    """Run stages of iteration 0, or reuse them; returns the last one's folder."""
    with store.lock(config.run, "benchmark"):
        begin_iteration(store, config, 0)
        results = [await run_stage(store, config, stage, 0) for stage in stages]
    return results[-1].committed


async def experiment(data: Path, file: Path, minutes: float) -> None:
    """Warm start on a file of demonstrations, its evaluation, iterations; a line each."""
    store = Store(data)
    config = configured(file)
    react = configured(file, run=f"{config.run}-react", algorithm="react")
    print(f"{machine()}\n\n{HEAD}", flush=True)
    await run_iteration(store, react, 0)
    evaluated = store.committed(react.run, "evaluation", 0)
    assert evaluated is not None
    baseline = dict(evaluated.scan("episodes").select("task_id", "success").collect().rows())
    rows = [await measure(store, react, 0, baseline, "warm start")]
    print(line(rows[0]), flush=True)
    await run_stages(store, config, ("warm-start",))
    clock, iteration = time.monotonic(), 0
    while time.monotonic() - clock < 60 * minutes:
        await run_iteration(store, config, iteration)
        rows.append(await measure(store, config, iteration, baseline, f"iteration {iteration}"))
        print(line(rows[-1]), flush=True)
        iteration += 1
    print(f"written to {write_checks('guess_number', [], policies=[asdict(m) for m in rows])}")


def demonstrated(data: Path) -> Path:
    """The file of demonstrations, made where it is missing."""
    file = data / "guess_number.parquet"
    if not file.exists():
        data.mkdir(parents=True, exist_ok=True)
        demonstrations(ROWS, 0).write_parquet(file)
    return file


def main(
    minutes: Annotated[float, typer.Option(help="no iteration is begun after them")] = 60.0,
    data: Annotated[Path, typer.Option(help="data root")] = OUT / "guess_number",
) -> None:
    """Run the experiment; started again, it goes on where it stopped."""
    asyncio.run(experiment(data, demonstrated(data), minutes))


if __name__ == "__main__":
    typer.run(main)
