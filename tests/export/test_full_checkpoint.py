"""A policy whose training changed all weights leaves the program as a checkpoint of its own."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from flows.cli.main import app
from schemas.config import Config
from storage.store import Store
from tasks.pipeline.iterations import begin_iteration
from tests.support.committed import commit_rows


@pytest.mark.parametrize("merge", [[], ["--merge", "--dtype", "float32"]])
def test_its_weights_are_exported_with_the_tokenizer_of_the_base(
    make_config: Callable[..., Config], tiny_checkpoint: Path, tmp_path: Path, merge: list[str]
) -> None:
    trained = AutoModelForCausalLM.from_pretrained(tiny_checkpoint)
    with torch.no_grad():
        trained.model.norm.weight += 1.0
    trained.save_pretrained(tmp_path / "trained")
    store = Store(tmp_path / "data")
    begin_iteration(store, make_config(model={"train": "full"}), 0)
    commit_rows(store, "policy-distillation", 0, {}, adapters={"policy": tmp_path / "trained"})

    words = ["export", "policy", str(tmp_path / "out"), "--run", "trial", *merge]
    result = CliRunner().invoke(app, words, env={"NLAC_DATA": str(store.root)})
    assert result.exit_code == 0, result.stderr
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert torch.equal(exported.model.norm.weight, trained.model.norm.weight)
    assert AutoTokenizer.from_pretrained(tmp_path / "out").encode("Guess!")


def test_a_run_that_lost_its_configuration_says_what_to_restore(
    make_config: Callable[..., Config], tmp_path: Path
) -> None:
    store = Store(tmp_path / "data")
    begin_iteration(store, make_config(), 0)
    commit_rows(store, "critic-sft", 0, {"training_rows": []})
    for path in store.run_dir("trial").rglob("config.yaml"):
        path.unlink()
    words = ["export", "critic-sft", str(tmp_path / "rows.jsonl"), "--run", "trial"]
    result = CliRunner().invoke(app, words, env={"NLAC_DATA": str(store.root)})
    assert result.exit_code == 1
    assert "iteration 0 of run 'trial' has lost its config.yaml; restore it from a copy" in result.stderr


def test_demonstrations_are_written_once_and_never_over_another_file(tmp_path: Path) -> None:
    words = ["demonstrate", str(tmp_path / "folder" / "told.parquet"), "--rows", "1"]
    assert CliRunner().invoke(app, words).exit_code == 0
    again = CliRunner().invoke(app, words)
    assert again.exit_code == 2
    assert "is there already, and nothing is overwritten" in again.stderr
