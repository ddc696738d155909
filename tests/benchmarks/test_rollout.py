"""The benchmark of rollouts, small, with rules in place of the model: what it counts, and when."""

import asyncio
from pathlib import Path

from benchmarks.inference.rollout import Recorder, Trial, measure, side
from schemas.config import Config, EngineSection, ModelSection
from schemas.load import load_config
from tasks.engines.backends import build_engine

RULES = EngineSection(backend="scripted", rules="tests.support.rules:number_game")


def waiting(milliseconds: float) -> Config:
    loaded = load_config()
    options = {"name": "textarena", "options": {}, "milliseconds": milliseconds}
    return loaded.model_copy(
        update={
            "environment": loaded.environment.model_copy(
                update={"name": "benchmarks.inference.rollout:Delayed", "options": options}
            ),
            "rollout": loaded.rollout.model_copy(update={"episodes": 8, "max_steps": 3}),
        }
    )


def test_both_sides_answer_the_same_requests_and_the_drain_stands_apart(tmp_path: Path) -> None:
    trial = Trial(waiting(20), RULES, ModelSection(), 1, tmp_path)
    (played,), (replayed,) = asyncio.run(measure(trial, 1))
    assert played.requests == replayed.requests > 8
    assert played.tokens == replayed.tokens
    assert played.drain == 0 == replayed.drain  # with a cap of 1 no episode remains when fewer than it do
    assert (
        played.starved == played.idle > 0.01
    )  # rules answer at once, and then all wait for their environment
    assert 0.02 < played.steady < 3 * 1.5 * 0.02 + 2


def test_what_comes_back_in_the_drain_does_not_count(tmp_path: Path) -> None:
    engine = build_engine(RULES, ModelSection(), tmp_path)
    recorder = Recorder(engine, 10.0, 1.0, finished=[(12.0, 2.0, 5), (14.0, 3.0, 7), (19.0, 9.0, 100)])
    counted = side(recorder, startup=3.0, few=14.0, cap=2)
    assert (counted.steady, counted.drain, counted.requests, counted.tokens) == (4.0, 5.0, 2, 12)
    assert (counted.rate, counted.cpu_rate, counted.startup) == (3.0, 6.0, 3.0)


def test_an_engine_is_idle_without_a_request_and_starved_below_the_cap_until_the_drain(
    tmp_path: Path,
) -> None:
    engine = build_engine(RULES, ModelSection(), tmp_path)
    held = [(10.0, 1), (11.0, 2), (14.0, 1), (15.0, 0), (17.0, 1), (20.0, 0)]
    recorder = Recorder(engine, 10.0, 1.0, finished=[(15.0, 2.0, 5), (20.0, 3.0, 7)], held=held)
    whole, cut = (side(recorder, 0.0, few, 2) for few in (20.0, 16.0))
    assert (whole.idle, whole.starved) == (2.0, 1.0 + 1.0 + 2.0 + 3.0)
    assert (cut.idle, cut.starved) == (1.0, 3.0)
