"""`nlac ceiling`: what a model learns from optimal play."""

from pathlib import Path

import polars as pl
import pytest
import yaml
from typer.testing import CliRunner

from flows.cli.main import app
from schemas.load import PROJECT_ROOT
from storage.store import Store
from tasks.environments.frozen_lake.word_model import make_word_model


@pytest.mark.slow
def test_the_ceiling_plays_better_than_chance_and_is_a_run_of_its_own(tmp_path: Path) -> None:
    content = yaml.safe_load((PROJECT_ROOT / "configs" / "proofs" / "frozen_lake.yaml").read_text())
    content["model"]["name"] = str(make_word_model(tmp_path / "model", seed=0))
    content["environment"]["options"] |= {"maps": 24}
    content["warm_start"] = {
        "epochs": 8, "batch_rows": 64, "micro_batch_rows": 64, "learning_rate": 4.0e-3, "warmup_steps": 10
    }  # fmt: skip
    file, data = tmp_path / "lake.yaml", tmp_path / "data"
    file.write_text(yaml.safe_dump(content))
    command = ["ceiling", "--config", str(file), "--data", str(data), "--rows", "200"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("frozen-lake-ceiling: success ")
    evaluated = Store(data).committed("frozen-lake-ceiling", "evaluation", 0)
    assert evaluated is not None
    row = evaluated.scan("evaluations").collect().row(0, named=True)
    assert row["success_rate"] > row["baseline_success_rate"] + 0.1
    assert CliRunner().invoke(app, command).stdout == done.stdout
    warm = Store(data).committed("frozen-lake-ceiling", "warm-start", 0)
    assert warm is not None and warm.scan("demonstrations").select(pl.len()).collect().item() == 600


def test_an_environment_that_does_not_know_its_best_actions_has_no_ceiling(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["ceiling", "--data", str(tmp_path / "data")])
    assert done.exit_code == 1
    assert "GuessTheNumber-v0 does not know its best actions" in done.stderr
