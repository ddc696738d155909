"""A language model on FrozenLake: a run is measured after each iteration and goes on where it stopped."""

import asyncio
from pathlib import Path

import pytest

from benchmarks.learning.lake_language_model import (
    RESULTS,
    LakeFigures,
    LakeResult,
    configure,
    report,
    run_variant,
)
from benchmarks.learning.result_files import configuration_digest, read_result, write_result
from benchmarks.learning.walk_run import PROOFS
from schemas.load import load_config
from storage.store import Store

SMALL = {
    "model": {"dtype": "float32", "context_length": 2000, "lora": {"r": 2, "alpha": 4}},
    "environment": {"options": {"maps": 2}},
    "rollout": {"episodes": 3, "first_episodes": 4, "uniform_until": 1, "max_steps": 4},
    "replay": {"transitions": 8},
    "improvement": {"states": 3, "futures": 1, "from_iteration": 1},
    "evaluation": {"episodes": 2},
}


def test_the_settings_are_those_of_the_line_walk() -> None:
    """But for the world, its rules, and the counts of episodes and draws."""
    ours, carried = (
        load_config(PROOFS / name) for name in ("frozen_lake_language_model.yaml", "line_walk.yaml")
    )
    for section in ("model", "critic", "policy", "target", "improvement", "roles"):
        assert getattr(ours, section) == getattr(carried, section), section


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*.json")), ids=lambda file: file.stem)
def test_a_committed_result_is_of_the_configuration_that_ships(file: Path) -> None:
    result = read_result(file, LakeResult)
    assert result.configuration == configuration_digest(configure(result.variant, result.seed))


def test_the_report_has_runs_with_and_without_a_critic(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for variant, rank in (("nlac", 0.75), ("rft", None)):
        figures = [LakeFigures(0, 4000, 0.5, 0.625, rank, 0.0)]
        write_result(tmp_path, LakeResult(variant, 0, configuration="0", figures=figures))
    report(tmp_path)
    said = capsys.readouterr().out
    assert "nlac-0" in said and "rft-0" in said and said.count("0.750") == 1 and said.count("0.625") == 2


@pytest.mark.slow
def test_a_run_goes_on_where_it_stopped(tmp_path: Path, tiny_checkpoint: Path) -> None:
    config = configure("nlac", 0, SMALL)
    config = config.model_copy(
        update={"model": config.model.model_copy(update={"name": str(tiny_checkpoint)})}
    )

    def go(iterations: int) -> LakeResult:
        store = Store(tmp_path / "data")
        return asyncio.run(run_variant("nlac", config, store, tmp_path, steps=10**6, iterations=iterations))

    first = go(1)
    assert read_result(tmp_path / "nlac-0.json", LakeResult) == first
    second = go(2)
    assert second.figures[0] == first.figures[0] and len(second.figures) == 2
    assert second.figures[1].tokens > first.figures[0].tokens > 0
    assert first.figures[0].rank is not None and first.figures[0].verdict_ceiling is not None
