"""The proof with a pretrained language model: its runs go on where they stopped, and its bars can be missed."""

import asyncio
import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.learning import result_files, resumed_run
from benchmarks.learning.language_model import (
    RESULTS,
    SEEDS,
    STEPS,
    at_bar,
    of_length,
    origin,
    proof_checks,
    report,
    row,
)
from benchmarks.learning.result_files import (
    Result,
    WalkFigures,
    configuration_digest,
    measured_here,
    read_result,
    read_results,
    write_result,
)
from benchmarks.learning.walk_run import CEILING, CEILING_ROWS, VARIANTS, configure, run
from schemas.config import Config
from schemas.load import merge
from storage.store import Store
from tasks.algorithms import algorithm_of
from tasks.environments import make_environment
from tasks.pipeline.ceiling import ceiling_config
from tasks.pipeline.iterations import frozen_config
from tasks.runtime.stage import StageFailed
from tasks.training import trainer
from tasks.training.records import TrainingDiverged, TrainingError
from tests.support.processor import computes_long

SMALL_SEED = 2  # its six held-out lines have 60 pairs of actions


def small(checkpoint: Path) -> dict[str, Any]:
    """Changes that make a run of seconds with a tiny model."""
    return {
        "model": {
            "name": str(checkpoint), "dtype": "float32", "context_length": 2000, "lora": {"r": 2, "alpha": 4}
        },
        "environment": {"options": {"cells": 7, "held_out": 2}},
        "rollout": {"episodes": 3, "first_episodes": 4, "uniform_until": 1},
        "replay": {"transitions": 8},
        "improvement": {"states": 3, "futures": 1, "from_iteration": 1},
    }  # fmt: skip


def small_imitation(checkpoint: Path) -> dict[str, Any]:
    """The same for rejection fine-tuning from the first iteration on."""
    more = {"first_episodes": 24, "uniform_until": 1}  # some of them succeed
    return {**small(checkpoint), "improvement": {"from_iteration": 0}, "rollout": more}


@pytest.mark.slow
def test_a_run_goes_on_where_it_stopped(tmp_path: Path, tiny_checkpoint: Path) -> None:
    data, results = tmp_path / "data", tmp_path / "results"

    def go(iterations: int, beside: bool = False, **changes: object) -> Result:
        given = {**small(tiny_checkpoint), **changes}
        return asyncio.run(
            run(
                "nlac", 0, 9, steps=10**6, data=data, results=results, changes=given, iterations=iterations,
                beside=beside,
            )
        )  # fmt: skip

    first = go(1)
    assert read_result(results / "nlac-9-0.json", Result) == first
    assert [m.iteration for m in first.figures] == [0] and first.figures[0].rank is not None
    assert 0 <= first.figures[0].sampled_success < 0.5 and first.figures[0].tokens > 0
    second = go(2, beside=True)
    assert second.figures[0] == first.figures[0], "what is measured is not measured again"
    assert second.figures[1].environment_steps > first.figures[0].environment_steps
    done = Store(data).committed("nlac-9-0", "rollout", 0)
    assert done is not None and go(2) == second
    assert second.configuration == first.configuration and second.machine["cores"] >= 1
    (results / "nlac-9-0.json").unlink()
    assert [m.sampled_success for m in go(2).figures] == [m.sampled_success for m in second.figures]
    with pytest.raises(SystemExit, match="with another configuration; give another --data"):
        go(3, target={"tau": 0.5})


def test_an_iteration_is_measured_while_the_next_one_runs_and_noted_where_that_fails(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    running = [asyncio.Event() for _ in range(3)]

    async def iterate(store: Store, config: Config, iteration: int) -> None:
        told.append(f"{iteration} runs")
        running[iteration].set()
        await asyncio.sleep(0)
        if iteration == 2:
            raise StageFailed("broken")

    async def measure(iteration: int) -> WalkFigures:
        await running[iteration + 1].wait()
        told.append(f"{iteration} is measured")
        return WalkFigures(iteration, 1, 0.5, 0.5)

    monkeypatch.setattr(resumed_run, "run_iteration", iterate)
    monkeypatch.setattr(resumed_run, "used_steps", lambda *_: 1)
    config = configure("nlac", 9, 0, {"model": {"dtype": "float32"}})
    begun = Result("nlac", 9, 0, configuration=configuration_digest(config))
    with pytest.raises(StageFailed, match="broken"):
        asyncio.run(
            resumed_run.go_on(store, config, begun, tmp_path, measure, steps=9, iterations=4, beside=True)
        )
    assert told == ["0 runs", "1 runs", "0 is measured", "2 runs", "1 is measured"]
    noted = read_result(tmp_path / "nlac-9-0.json", Result)
    assert [figures.iteration for figures in noted.figures] == [0, 1]


@pytest.mark.slow
def test_a_result_without_its_data_is_begun_anew(tmp_path: Path, tiny_checkpoint: Path) -> None:
    given = small_imitation(tiny_checkpoint)
    played = [
        asyncio.run(
            run("rft", 1, 9, steps=1, data=tmp_path / name, results=tmp_path, changes=given, iterations=1)
        )
        for name in ("one", "two")
    ]
    assert played[0].figures[0].sampled_success == played[1].figures[0].sampled_success
    assert played[0].figures[0].rank is None, "rejection fine-tuning has no critic"


@pytest.mark.slow
def test_an_iteration_that_diverges_is_repeated_once_with_a_fresh_optimizer(
    tmp_path: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = small_imitation(tiny_checkpoint)
    trained = []

    def go(iterations: int, *failures: type[Exception]) -> Result:
        errors = iter(failures)

        def checks(*_: Any) -> None:
            trained.append(iterations)
            for error in errors:
                raise error("so it is")

        monkeypatch.setattr(trainer, "refuse_divergence", checks)
        changed = run(
            "rft", 1, 9, steps=10**6, data=tmp_path, results=tmp_path, changes=given, iterations=iterations
        )
        return asyncio.run(changed)

    with pytest.raises(StageFailed, match="so it is"):
        go(1, TrainingDiverged)  # a fresh optimizer is what it had
    assert len(trained) == 1 and go(1).fresh_optimizer == []
    for failures in ((TrainingError,), (TrainingDiverged, TrainingError), (TrainingDiverged,)):
        trained.clear()
        with pytest.raises(StageFailed, match="so it is"):
            go(2, *failures)
        assert len(trained) == len(failures), "one repetition, also over several runs"
    assert go(2).fresh_optimizer == [1] and go(3).fresh_optimizer == [1]
    frozen = [frozen_config(Store(tmp_path), "rft-9-1", number) for number in range(3)]
    assert [one.policy.optimizer for one in frozen if one] == ["carry", "reset", "carry"]
    told = read_result(tmp_path / "rft-9-1.json", Result)
    assert told.fresh_optimizer == [1] and origin(told)["fresh optimizer"] == "1"


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["grpo", "ppo"])
def test_a_policy_gradient_imitates_uniform_play_until_its_policy_acts(
    tmp_path: Path, tiny_checkpoint: Path, variant: str
) -> None:
    given = small(tiny_checkpoint) | {
        "improvement": {"from_iteration": 0},
        "rollout": {"episodes": 2, "first_episodes": 12, "repeats": 2, "uniform_until": 1},
    }
    run_of = run(variant, 1, 9, steps=10**6, data=tmp_path, results=tmp_path, changes=given, iterations=2)
    result = asyncio.run(run_of)
    assert [found.rank for found in result.figures] == [None, None]
    store = Store(tmp_path)
    trained = [store.committed(f"{variant}-9-1", "policy-distillation", number) for number in range(2)]
    assert all(trained)
    imitated, rated = (made.manifest for made in trained if made)
    assert imitated.metrics["steps"] and imitated.metrics["successful_transitions"]
    assert not any(name.startswith("advantages") for name in imitated.fingerprint_inputs.inputs)
    assert "advantages@00001.advantages" in rated.fingerprint_inputs.inputs


@pytest.mark.model
@computes_long
@pytest.mark.usefixtures("real_model")
@pytest.mark.timeout(600)
def test_one_sweep_of_backups_ranks_actions_and_shuffled_labels_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On lines of five cells. What is one step away ranks .75 of the pairs at best; an untrained critic ranks .5."""
    monkeypatch.setattr("benchmarks.learning.measured_run.RANKED_FUTURES", 4)
    given = {
        "environment": {"options": {"cells": 5, "moves": 1, "held_out": 2}},
        "rollout": {"first_episodes": 40},
        "replay": {"transitions": 112},
        "critic": {
            "mix": 0.0, "batch_rows": 4, "micro_batch_rows": 4, "learning_rate": 2.0e-3, "warmup_steps": 4
        },
    }  # fmt: skip
    swept = {}
    for variant in ("nlac", "shuffled"):
        one = run(
            variant, SMALL_SEED, 9, steps=1, data=tmp_path, results=tmp_path, changes=given, iterations=1
        )
        swept[variant] = asyncio.run(one).figures[0]
    learned, control = swept["nlac"], swept["shuffled"]
    assert (learned.rank or 0) >= 0.68 and (control.rank or 0) < 0.62, swept
    assert (learned.next_cell or 0) >= 0.8 and (control.next_cell or 0) <= 0.5, swept


def test_variants_differ_from_the_shipped_configuration_in_what_they_are() -> None:
    own = configure("nlac", 9, 0)
    algorithms = {name: algorithm_of(configure(name, 9, 0)).name for name in VARIANTS}
    assert algorithms == {
        "nlac": "nlac", "rft": "rft", "grpo": "grpo", "ppo": "ppo", "sac": "sac", "nlrl": "nlrl",
        "refiner_alone": "refiner_alone", "no_bootstrap": "nlac", "shuffled": "nlac", "ceiling": "nlac",
    }  # fmt: skip
    assert configuration_digest(configure("nlac", 9, 2)) == configuration_digest(own)
    digests = {configuration_digest(configure(name, cells, 0)) for name in VARIANTS for cells in STEPS}
    assert len(digests) == 2 * (len(VARIANTS) - 1), "the ceiling is nlac's configuration, otherwise trained"
    for cells in STEPS:
        config = configure("nlac", cells, 3)
        assert make_environment(config.environment).name == "line_walk"
        assert (config.environment.options["cells"], config.environment.options["seed"]) == (cells, 3)


def test_a_result_names_the_gpu_it_was_computed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def made_on(device: str) -> Result:
        config = merge(
            configure("nlac", 9, 0).model_dump(), {"model": {"dtype": "bfloat16", "device": device}}
        )
        return measured_here(_result("nlac", 0, 0.9), Config.model_validate(config), [])

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "a card")
    assert made_on("auto").machine["gpu"] == origin(made_on("auto"))["processor"] == "a card"
    assert "gpu" not in made_on("cpu").machine and origin(made_on("cpu"))["weights"] == "bfloat16"


def _result(variant: str, seed: int, success: float, rank: float | None = None, steps: int = 4000) -> Result:
    figures = [WalkFigures(i, steps * (i + 1) // 4, success, success, rank, 0.0) for i in range(4)]
    machine = {"threads": 1, "cores": 2, "processor": "x", "flags": [], "dtype": "float32"}
    return Result(
        variant, 9, seed, configuration="0", machine=machine, commit="c", date="d", figures=figures
    )  # fmt: skip


def _all(**changes: Result) -> dict[tuple[str, int], Result]:
    known = [_result("nlac", seed, 0.9, 0.9) for seed in SEEDS]
    known += [_result("rft", seed, 0.6) for seed in SEEDS]
    known += [_result("refiner_alone", seed, 0.15) for seed in SEEDS]
    return dict(of_length([*known, _result("shuffled", 0, 0.18, 0.5), *changes.values()], 9))


def missed(runs: dict[tuple[str, int], Result]) -> set[str]:
    return {c.name for c in proof_checks(runs, 4000) if not c.ok}


def test_every_bar_of_the_language_model_can_be_missed() -> None:
    assert missed(_all()) == set()
    assert len(proof_checks(_all(), 4000)) == 5
    for variant, success, rank, name in (
        ("nlac", 0.84, 0.9, {"lm_success_median"}),
        ("nlac", 0.9, 0.84, {"lm_rank_median"}),
        ("rft", 0.81, None, {"lm_above_rft_median"}),
        ("refiner_alone", 0.41, None, {"lm_above_refiner_alone_median", "lm_shuffled_from_refiner_alone"}),
    ):
        two = {str(seed): _result(variant, seed, success, rank) for seed in SEEDS[:2]}
        assert missed(_all(**two)) == name
        assert missed(_all(one=_result(variant, 1, success, rank))) == set(), "it is the median that counts"
    assert missed(_all(learned=_result("shuffled", 0, 0.25))) == {"lm_shuffled_from_refiner_alone"}


def test_a_run_that_is_missing_or_too_short_misses_its_bars() -> None:
    short = _all(short=_result("nlac", 1, 0.9, 0.9, steps=3999))
    assert at_bar(short, "nlac", 1, "sampled_success", 4000) != at_bar(
        short, "nlac", 1, "sampled_success", 4000
    )
    assert missed(short) >= {"lm_success_median", "lm_rank_median"}
    without = _all()
    del without["rft", 2]
    assert missed(without) == {"lm_above_rft_median"}


def test_a_run_is_read_at_the_steps_compared_at() -> None:
    late = replace(
        _result("nlac", 0, 0.9, 0.9), figures=[WalkFigures(i, 1000 * i, i / 10, 0.5) for i in range(8)]
    )
    assert row(late, 4000)["steps"] == 4000 and row(late, 4000)["iterations"] == 5
    assert row(late, 4000)["sampled_success"] == "0.300", "of iterations 2, 3 and 4"
    assert at_bar({("nlac", 0): late}, "nlac", 0, "sampled_success", 7000) == pytest.approx(0.6)


def test_the_report_is_made_of_committed_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.checks.OUT", tmp_path / "out")
    monkeypatch.setattr("benchmarks.learning.language_model.PICTURE", tmp_path / "images" / "lm.png")
    for result in _all().values():
        write_result(tmp_path / "results", result)
    assert read_results(tmp_path / "results", Result) == sorted(_all().values(), key=lambda r: r.name)
    write_result(tmp_path / "here", _result("nlac", 0, 0.87, 0.88))
    monkeypatch.setattr("benchmarks.checks.CONSOLE", Console(width=400))
    report(tmp_path / "results", here=tmp_path / "here")
    said = capsys.readouterr().out
    assert "nlac-9-0 (here)" in said and "0.870" in said and "rules play backup" in said
    assert (tmp_path / "images" / "lm.png").stat().st_size > 5000
    written = json.loads((tmp_path / "out" / "language_model.json").read_text())
    assert {c["name"]: c["value"] for c in written["checks"]}["lm_success_median"] == 0.9
    assert {c["name"]: c["value"] for c in written["checks"]}["lm_rank_here_seed_0"] == 0.88
    assert written["curves"]["rft-9-2"]["figures"][3]["sampled_success"] == 0.6
    assert written["curves"]["nlac-9-0 (here)"]["figures"][3]["sampled_success"] == 0.87
    write_result(tmp_path / "here", _result("nlac", 0, 0.84, 0.88))
    with pytest.raises(SystemExit, match=r"bars missed: lm_success_here_seed_0$"):
        report(tmp_path / "results", here=tmp_path / "here")
    write_result(tmp_path / "here", _result("nlac", 0, 0.87, 0.88, steps=3999))
    with pytest.raises(SystemExit, match=r"bars missed: lm_success_here_seed_0, lm_rank_here_seed_0$"):
        report(tmp_path / "results", here=tmp_path / "here")
    (tmp_path / "results" / "rft-9-1.json").unlink()
    with pytest.raises(SystemExit, match="bars missed: lm_above_rft_median"):
        report(tmp_path / "results")


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*.json")), ids=lambda file: file.stem)
def test_a_committed_result_is_of_the_configuration_that_ships(tmp_path: Path, file: Path) -> None:
    result = read_result(file, Result)
    config = configure(result.variant, result.cells, result.seed)
    if result.variant == CEILING:
        config = ceiling_config(Store(tmp_path), config, CEILING_ROWS)
    assert result.configuration == configuration_digest(config)


def test_rft_has_the_setting_that_seed_7_puts_first() -> None:
    grid = RESULTS.with_name("language_model_grid").glob("*/rft-9-7.json")
    runs = [read_result(file, Result) for file in grid]
    finished = [run for run in runs if run.figures[-1].environment_steps >= STEPS[9]]
    assert len(finished) >= 2
    best = max(finished, key=lambda run: at_bar({("rft", 7): run}, "rft", 7, "sampled_success", STEPS[9]))
    assert best.configuration == configuration_digest(configure("rft", 9, 7))


def test_results_alone_do_not_make_a_commit_dirty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = tmp_path / "docs" / "results" / "one.json", tmp_path / "program.py"
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("before")
    author = ("-c", "user.name=n", "-c", "user.email=n@localhost")
    for words in (["init", "-q"], ["add", "."], [*author, "commit", "-qm", "all"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    monkeypatch.setattr(result_files, "PROJECT_ROOT", tmp_path)
    clean = result_files.commit()
    files[0].write_text("after")
    assert len(clean) == 12 and result_files.commit() == clean
    files[1].write_text("after")
    assert result_files.commit() == f"{clean}-dirty"
