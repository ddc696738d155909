"""The comparison: what all algorithms share, its figures, and a page that says what was not run or not found."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import inf, isnan
from pathlib import Path
from typing import Any

import pytest

from benchmarks.learning import compared, comparison, comparison_page
from benchmarks.learning.compared import (
    GRID_SEED,
    SEEDS,
    WORLDS,
    Compared,
    ComparedFigures,
    configure,
    digest_of,
    grid_of,
)
from benchmarks.learning.comparison_page import MARKS, between, findings, mean_success, steps_to
from benchmarks.learning.result_files import read_result, write_result
from schemas.load import PROJECT_ROOT
from storage.sql.views import connect
from storage.store import Store
from tasks.algorithms import ALGORITHMS
from tasks.pipeline.checks import check_config
from tasks.runtime.stage import StageFailed
from tasks.training import trainer
from tasks.training.records import TrainingDiverged, TrainingError

SMALL: dict[str, dict[str, Any]] = {
    "frozen_lake": {"environment": {"options": {"maps": 2}}},
    "line_walk": {"environment": {"options": {"cells": 9, "held_out": 1}}},
}


def small(world: str, **improvement: Any) -> dict[str, Any]:
    """Changes that make a run of seconds."""
    return SMALL[world] | {
        "rollout": {"episodes": 4, "first_episodes": 24, "uniform_until": 1, "repeats": 1},
        "policy": {"epochs": 1},
        "improvement": {"states": 4, "futures": 2, "rounds": 1, "from_iteration": 0, **improvement},
        "evaluation": {"episodes": 2},
    }


def run_small(folder: Path, world: str, algorithm: str, iterations: int) -> Compared:
    return asyncio.run(
        compared.run(
            world, algorithm, 0, grid_of(algorithm)[0], data=folder, results=folder / "results",
            iterations=iterations, changes=small(world),
        )
    )  # fmt: skip


@pytest.mark.parametrize("world", WORLDS)
def test_scalar_critics_discount_as_the_evaluator_does(world: str) -> None:
    ppo, sac = (configure(world, algorithm, 0, {}, Path("/")) for algorithm in ("ppo", "sac"))
    assert ppo.policy_gradient.discount == sac.soft_q.discount == ppo.environment.options["gamma"]


@pytest.mark.slow
@pytest.mark.parametrize(("world", "algorithm"), [("frozen_lake", "self_distillation"), ("line_walk", "rft")])
def test_a_run_goes_on_where_it_stopped_and_sql_says_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: str, algorithm: str
) -> None:
    go = partial(run_small, tmp_path, world, algorithm)
    first = go(1)
    assert [f.iteration for f in first.figures] == [0] and not first.complete
    second = go(2)
    assert second.figures[0] == first.figures[0] and second.optimum == pytest.approx(1.0)
    last = second.figures[1]
    assert (last.simulated_steps > 0) == (algorithm == "self_distillation")
    assert last.generated_tokens > 0 and last.trained_tokens > first.figures[0].trained_tokens > 0
    with connect(Store(tmp_path / world)) as database:
        told = database.execute(
            "select iteration, environment_steps, simulated_steps, generated_tokens, trained_tokens, seconds "
            "from comparison order by iteration"
        ).fetchall()
    assert told == [
        (f.iteration, f.environment_steps, f.simulated_steps, f.generated_tokens, f.trained_tokens,
         pytest.approx(f.seconds))
        for f in second.figures
    ]  # fmt: skip
    monkeypatch.setitem(WORLDS, world, replace(WORLDS[world], steps=last.environment_steps))
    (tmp_path / world).rename(tmp_path / "gone")
    assert go(9) == read_result(tmp_path / "results" / f"{world}-{algorithm}-0.json", Compared)
    assert not (tmp_path / world).exists(), "a complete result is read, and nothing is run"


@pytest.mark.slow
def test_a_run_whose_training_diverges_ends_with_its_last_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = partial(run_small, tmp_path, "line_walk", "rft")

    def failing(error: type[Exception]) -> Callable[..., None]:
        def fails(*steps: Any) -> None:
            raise error("step 3: so it is")

        return fails

    monkeypatch.setattr(trainer, "refuse_divergence", failing(TrainingDiverged))
    with pytest.raises(StageFailed, match="so it is"):
        go(1)  # nothing was learnt
    monkeypatch.undo()
    first = go(1)
    monkeypatch.setattr(trainer, "refuse_divergence", failing(TrainingError))
    with pytest.raises(StageFailed, match="so it is"):
        go(2)
    assert read_result(tmp_path / "results" / "line_walk-rft-0.json", Compared) == first
    monkeypatch.setattr(trainer, "refuse_divergence", failing(TrainingDiverged))
    last = go(2)
    assert last.complete and last.diverged == "step 3: so it is" and last.figures == first.figures
    monkeypatch.undo()
    assert go(2) == last, "it has ended"
    [row] = [line for line in comparison_page.page([last], []) if line.startswith("| line_walk-rft-0 |")]
    assert "| diverged after 1 |" in row


@pytest.mark.parametrize("world", WORLDS)
def test_all_algorithms_share_all_but_what_they_are_and_their_settings(world: str, tmp_path: Path) -> None:
    model = WORLDS[world].make_model(tmp_path / "model", 0)
    assert {len(grid_of(name)) for name, a in ALGORITHMS.items() if a.trains} == {4}
    own = configure(world, "nlac", 0, {}, model).model_dump()
    for algorithm in ALGORITHMS:
        for setting in grid_of(algorithm):
            config = configure(world, algorithm, 1, setting, model)
            check_config(config, tmp_path / "data")
            content = config.model_dump()
            shared = {"model", "engines", "roles", "replay", "target", "evaluation", "warm_start"}
            assert all(content[section] == own[section] for section in shared)
            played = config.rollout.episodes * config.rollout.repeats
            assert (played, config.rollout.exploration, config.rollout.uniform_until) == (128, 0.0, 2)
            assert config.environment.options["seed"] == config.seed == 1
        assert len({digest_of(world, algorithm, setting) for setting in grid_of(algorithm)}) == len(
            grid_of(algorithm)
        )
    assert GRID_SEED not in SEEDS


def _run(algorithm: str, *success: float, seed: int = 0, steps: int = 5000, **more: Any) -> Compared:
    figures = [
        ComparedFigures(
            n - 1, steps * n, s, s, generated_tokens=10 * n, trained_tokens=n, seconds=60.0 * n
        )
        for n, s in enumerate(success, 1)
    ]  # fmt: skip
    digest = digest_of("frozen_lake", algorithm, grid_of(algorithm)[0])
    return Compared(
        "frozen_lake", algorithm, seed, {}, 0.8, configuration=digest, commit="c", date="d", figures=figures,
        machine={"processor": "x", "cores": 2, "threads": 1}, **more,
    )  # fmt: skip


def test_figures_by_hand() -> None:
    run = _run("nlac", 0.3, 0.5, steps=3000)
    assert mean_success(run.figures, 10_000) == pytest.approx((3000 * 0.3 + 4000 * 0.5) / 10_000)
    assert mean_success(run.figures, 4000) == pytest.approx(1000 * 0.3 / 4000)
    assert (steps_to(run, 0.5), steps_to(run, 0.9)) == (6000, inf), "of the optimum, .8"
    late = _run("nlac", 0.1, 0.2, 0.9)
    assert steps_to(late, 0.5) == inf, "10,000 steps are those compared at"
    assert steps_to(_run("nlac", 0.1, 0.9, steps=6000), 0.5) == inf, "12,000 are more"


def missed(results: Sequence[Compared]) -> set[str]:
    return {c.name.removeprefix("frozen_lake_") for c in comparison_page.checks(results)[:3] if not c.ok}


def test_what_was_expected_of_nlac_can_be_missed_and_the_page_says_so() -> None:
    steps_missed = {"nlac_steps_to_half", "nlac_steps_to_nine_tenths"}
    assert missed([]) == {"runs"} | steps_missed
    first = [_run("nlac", 0.5, 0.75), _run("rft", 0.1, 0.5)]
    assert missed(first) == {"runs"}
    assert [told.rpartition(";")[0] for told in findings(first, "frozen_lake")] == [
        "- To half of the optimum: NLAC needs the fewest steps, 5,000",
        "- To nine tenths of the optimum: NLAC needs the fewest steps, 10,000",
    ]
    second = [_run("nlac", 0.3, 0.5), _run("rft", 0.5, 0.75)]
    assert missed(second) == {"runs"} | steps_missed
    half, nine_tenths = findings(second, "frozen_lake")
    assert "**NLAC does not need the fewest steps**, but 10,000; rft needs 5,000" in half
    assert "**NLAC does not reach it**; rft needs 10,000" in nine_tenths
    assert "NLAC has not been run; rft needs 5,000" in next(findings(second[1:], "frozen_lake"))
    third = [_run("nlac", 0.1), *(_run("rft", 0.1, 0.75 if s == 0 else 0.1, seed=s) for s in SEEDS)]
    *_, nine_tenths = findings(third, "frozen_lake")
    assert nine_tenths.endswith("reaches it in the median of its seeds; rft does on 1 of 3 seeds.")
    every = [_run(a, 0.5 if a == "nlac" else 0.1, 0.8, seed=s) for a in ALGORITHMS for s in SEEDS]
    assert missed(every) == set()
    slow_seed = [*every, _run("nlac", 0.1, 0.1, seed=GRID_SEED)]
    assert missed(slow_seed) == set(), "the seed of grids is not reported"
    two_slow = [_run("nlac", 0.1, 0.8, seed=r.seed) if r.seed and r.algorithm == "nlac" else r for r in every]
    assert isnan(comparison_page.middle_steps([], "frozen_lake", "nlac", 0.5))
    assert comparison_page.middle_steps(two_slow, "frozen_lake", "nlac", 0.5) == 10_000, "the median counts"


def test_the_page_has_a_row_for_every_algorithm_and_a_missing_run_is_an_empty_one() -> None:
    results = [_run("nlac", 0.5, 0.75), _run("nlac", 0.3, 0.65, seed=1), _run("react", 0.01, steps=0)]
    lines = comparison_page.page(results, [])
    told = [line for line in lines if line.startswith("| `nlac`")]
    assert told[0] == (
        "| `nlac` | 0 1 | 0.550 (0.475 to 0.625) | 7,500 (5,000 to 10,000) | not reached (10,000 to not reached) | "
        "20 | 2 | 2.0 |"
    )
    for algorithm in ALGORITHMS.keys() - {"nlac", "react"}:
        assert f"| `{algorithm}` |  | not run |  |  |  |  |  |" in lines
    assert lines.count("| `nlac` |  | not run |  |  |  |  |  |") == 1, "the other world"
    assert any("not run; the first of 4 settings" in line for line in lines)
    lake, walk = comparison_page.readme(results)[2:4]
    assert lake.startswith(
        "| FrozenLake | 0.550 (0.475 to 0.625); not reached (10,000 to not reached) | not run |"
    )
    assert lake.count("not run") == len(ALGORITHMS) - 2 and walk.count("not run") == len(ALGORITHMS)
    text = f"a\n{MARKS[0]}\nold\n{MARKS[1]}\nb\n"
    assert between(text, ["new"]) == f"a\n{MARKS[0]}\nnew\n{MARKS[1]}\nb\n"
    with pytest.raises(ValueError, match="put them back"):
        between("a", ["new"])


def test_a_grid_is_won_by_the_highest_mean_success_and_runs_take_its_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = grid_of("rft")
    success = (0.1, 0.4, 0.3, 0.2)
    tried = [
        replace(_run("rft", s, s, seed=GRID_SEED), setting=settings[n], number=n)
        for n, s in enumerate(success)
    ]
    assert comparison.chosen_setting("frozen_lake", "rft", tmp_path) == settings[0]
    content = json.loads(comparison.write_choice(tried[::-1], tmp_path).read_text())
    assert (content["winner"], content["seed"], content["steps"]) == (1, GRID_SEED, 10_000)
    assert [s["mean_success"] for s in content["settings"]] == pytest.approx([s / 2 for s in success])
    assert comparison.chosen_setting("frozen_lake", "rft", tmp_path) == settings[1]
    assert comparison.choices(tmp_path) == [content]
    worst = "learning_rate 0.001, epochs 32, batch_rows 32: 0.100 |"
    [row] = [line for line in comparison_page.page([], [content]) if line.endswith(worst)]
    assert "; **learning_rate 0.001, epochs 8, batch_rows 32: 0.200**; " in row
    write_result(tmp_path / "results", _run("rft", 0.1, 0.5))
    assert comparison.current_results(tmp_path / "results", tmp_path) == [], "it had another setting"
    capsys.readouterr()
    (tmp_path / "frozen_lake-rft.json").write_text(
        json.dumps(content | {"settings": content["settings"][1:]})
    )
    assert comparison.chosen_setting("frozen_lake", "rft", tmp_path) == settings[0]
    assert "frozen_lake-rft.json was made of other settings; run the grid again" in capsys.readouterr().out


def test_the_report_is_made_of_complete_results_of_todays_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.checks.OUT", tmp_path / "out")
    monkeypatch.setattr(comparison_page, "PICTURE", tmp_path / "images" / "comparison.png")
    for name in ("PAGE", "README"):
        monkeypatch.setattr(comparison_page, name, tmp_path / name)
        (tmp_path / name).write_text("\n".join(MARKS))
    good = [_run("nlac", 0.5, 0.75), _run("nlac", 0.4, 0.75, seed=1), _run("rft", 0.1, 0.5)]
    bad = [_run("ppo", 0.1), replace(_run("grpo", 0.1, 0.5), configuration="0")]
    for result in [*good, *bad]:
        write_result(tmp_path / "results", result)
    with pytest.raises(SystemExit, match="missed: frozen_lake_runs, line_walk_runs, line_walk_nlac_steps"):
        comparison.report(tmp_path / "results", tmp_path / "grids")
    said = capsys.readouterr().out
    assert "frozen_lake-ppo-0 is not complete" in said
    assert "frozen_lake-grpo-0 was made with another configuration" in said
    written = json.loads((tmp_path / "out" / "comparison.json").read_text())
    checks = {c["name"]: c for c in written["checks"]}
    assert checks["frozen_lake_nlac_steps_to_half"]["ok"] and checks["frozen_lake_runs"]["value"] == 3
    assert set(written["curves"]) == {r.name for r in good}
    assert (tmp_path / "images" / "comparison.png").stat().st_size > 5000
    assert "| `nlac` | 0 1 |" in (tmp_path / "PAGE").read_text()


def test_the_committed_pages_are_those_of_the_committed_results() -> None:
    results = comparison.current_results(comparison.RESULTS, comparison.GRIDS)
    choices = comparison.choices(comparison.GRIDS)
    for file, lines in (("docs/comparison.md", comparison_page.page(results, choices)),
                        ("README.md", comparison_page.readme(results))):  # fmt: skip
        text = (PROJECT_ROOT / file).read_text(encoding="utf-8")
        assert between(text, lines) == text, "run python -m benchmarks.learning.comparison report"
