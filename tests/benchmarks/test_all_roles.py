"""The run with a language model in every role: its warm start, its paired games, and bars that can be missed."""

import asyncio
from math import sqrt
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.learning.all_roles import (
    LEAST_GAMES,
    RESULTS,
    SEEDS,
    interval,
    paired_differences,
    proof_checks,
    report,
)
from benchmarks.learning.result_files import (
    Result,
    WalkFigures,
    configuration_digest,
    read_result,
    write_result,
)
from benchmarks.learning.walk_run import ALL_ROLES, WARM_START, configure, demonstrated, run
from storage.store import Store
from tasks.algorithms import algorithm_of
from tasks.environments.line_walk import LineWalk
from tasks.pipeline.checks import check_config


def _result(variant: str, seed: int, won: int, games: int = LEAST_GAMES) -> Result:
    figures = [WalkFigures(0, 100, 0.5, 0.5, 0.7, 0.0, judged_value=0.5, distilled_value=float("nan"))]
    return Result(variant, 9, seed, configuration="0", figures=figures, games=[n < won for n in range(games)])


def _runs(*more: Result) -> dict[tuple[str, int], Result]:
    won = {"nlac": 120, WARM_START: 60, "refiner_alone": 70}
    known = [_result(variant, seed, n) for variant, n in won.items() for seed in SEEDS]
    return {(r.variant, r.seed): r for r in (*known, *more)}


def missed(runs: dict[tuple[str, int], Result]) -> set[str]:
    return {c.name for c in proof_checks(runs) if not c.ok}


def test_every_bar_can_be_missed() -> None:
    assert missed(_runs()) == set() and len(proof_checks(_runs())) == 4
    worse = missed(_runs(_result(WARM_START, 1, 121)))
    assert worse == {"all_roles_above_warm_start_worst_seed"}, "pooled it is still above"
    equal = [_result("refiner_alone", seed, 120) for seed in SEEDS]
    assert missed(_runs(*equal)) == {
        "all_roles_above_refiner_alone_low", "all_roles_above_refiner_alone_worst_seed"
    }  # fmt: skip
    assert len(missed(_runs(_result("nlac", 2, 190, games=LEAST_GAMES - 1)))) == 4, "too few games"
    without = _runs()
    del without[WARM_START, 0]
    assert missed(without) == {
        "all_roles_above_warm_start_low", "all_roles_above_warm_start_worst_seed"
    }  # fmt: skip


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*.json")), ids=lambda file: file.stem)
def test_a_committed_result_is_of_the_configuration_that_ships(file: Path) -> None:
    result = read_result(file, Result)
    config = configure(result.variant, result.cells, result.seed, experiment=ALL_ROLES)
    assert result.configuration == configuration_digest(config)


def test_games_are_compared_one_by_one() -> None:
    runs = _runs(_result("nlac", 0, 100), _result(WARM_START, 0, 101))
    assert paired_differences(runs, WARM_START, 0) == [0] * 100 + [-1] + [0] * 99
    mean, low, high = interval([1, 0, 0, -1, 1, 1])
    error = sqrt(sum((d - 1 / 3) ** 2 for d in (1, 0, 0, -1, 1, 1)) / 5 / 6)
    assert (mean, low, high) == pytest.approx((1 / 3, 1 / 3 - 1.96 * error, 1 / 3 + 1.96 * error))


def test_the_report_is_made_of_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.checks.OUT", tmp_path / "out")
    monkeypatch.setattr("benchmarks.checks.CONSOLE", Console(width=400))
    for result in _runs().values():
        write_result(tmp_path / "results", result)
    report(tmp_path / "results")
    said = capsys.readouterr().out
    assert "120 of 200" in said and "+0.300 (" in said
    (tmp_path / "results" / "nlac-9-1.json").unlink()
    with pytest.raises(SystemExit, match="bars missed: all_roles_above_warm_start_low"):
        report(tmp_path / "results")


def test_variants_are_sound_configurations_of_the_same_world(tmp_path: Path) -> None:
    configs = {name: configure(name, 9, 3, experiment=ALL_ROLES) for name in ALL_ROLES.variants}
    assert {name: algorithm_of(config).name for name, config in configs.items()} == {
        WARM_START: "react", "nlac": "nlac", "refiner_alone": "refiner_alone"
    }  # fmt: skip
    for config in configs.values():
        check_config(demonstrated(Store(tmp_path), config, 2), tmp_path)
        assert config.environment == configs["nlac"].environment and config.evaluation.episodes >= LEAST_GAMES
        assert config.seed == config.environment.options["seed"] == 3


@pytest.mark.slow
def test_the_warm_started_policy_plays_its_games(tmp_path: Path, tiny_checkpoint: Path) -> None:
    given = {
        "model": {
            "name": str(tiny_checkpoint), "dtype": "float32", "context_length": 2000, "lora": {"r": 2, "alpha": 4}
        },
        "warm_start": {"batch_rows": 64},
        "evaluation": {"episodes": 6},
    }  # fmt: skip
    done = asyncio.run(
        run(
            WARM_START, 1, 9, steps=1, data=tmp_path, results=tmp_path, changes=given, iterations=9,
            experiment=ALL_ROLES,
        )
    )  # fmt: skip
    assert len(done.games) == 6 and len(done.figures) == 1 and done.figures[0].rank is not None
    assert read_result(tmp_path / "warm_start-9-1.json", Result) == done
    store = Store(tmp_path)
    shown = store.committed("warm_start-9-1", "warm-start", 0)
    assert shown is not None
    told = shown.scan("demonstrations").select("observation").collect()["observation"]
    lines = LineWalk(cells=9, moves=2, train_moves=1, seed=1).lines("train")
    assert set(told) <= {line.observation(s) for line in lines for s in line.states}, (
        "no held-out line is shown"
    )
