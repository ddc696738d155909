"""`nlac config check` and `nlac config show`."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from schemas.config import Config
from schemas.load import PROJECT_ROOT, dump_config, load_config
from storage.store import Store
from tasks.algorithms import ALGORITHMS
from tasks.pipeline.iterations import begin_iteration
from tests.support.cli import nlac


def test_config_check_of_a_cluster_file_needs_no_vllm_here(store: Store) -> None:
    file = str(PROJECT_ROOT / "configs" / "cluster" / "qwen2.5-7b-twenty-questions.yaml")
    result = nlac(store, "config", "check", file, "--elsewhere")
    assert result.exit_code == 0, result.stderr
    assert "critic-sft" in result.stdout and "Not checked: what must be on the machine" in result.stdout


def written(path: Path, content: Mapping[str, object]) -> str:
    path.write_text(yaml.safe_dump(content))
    return str(path)


def test_config_check_prints_what_a_run_would_do(store: Store, scripted: Config, tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(dump_config(scripted))
    result = nlac(store, "config", "check", str(file))
    assert result.exit_code == 0, result.stderr
    assert all(stage in result.stdout for stage in ALGORITHMS["nlac"].stages)
    assert "nlac-training" in result.stdout
    assert not store.root.exists()


@pytest.mark.slow
def test_config_check_says_which_type_of_weights_a_run_has_and_why(
    store: Store, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NLAC_MODEL_CACHE", str(tmp_path / "models"))
    model = {"name": str(tiny_checkpoint), "device": "cpu"}
    file = written(tmp_path / "auto.yaml", {"run": "trial", "model": model})
    probed = nlac(store, "config", "check", file)
    assert re.search(
        r"^model\.dtype: (float32|bfloat16), \d+\.\d times as fast as (bfloat16|float32) in products at \d+ x \d+ ",
        probed.stdout,
        re.MULTILINE,
    ), probed.output
    assert not store.root.exists()
    for dtype in ("float32", "bfloat16"):
        named = written(tmp_path / "named.yaml", {"run": dtype, "model": {**model, "dtype": dtype}})
        assert f"model.dtype: {dtype}, as configured\n" in nlac(store, "config", "check", named).stdout
        begin_iteration(store, load_config(named), 0)
        file = written(tmp_path / "auto.yaml", {"run": dtype, "model": model})
        kept = nlac(store, "config", "check", file).stdout
        assert f"model.dtype: {dtype}, as in iteration 0 of run '{dtype}'\n" in kept


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"critc": {}}, "critc: unknown field"),
        ({"critic": {"epochs": "many"}}, "critic.epochs"),
        ({"model": {"name": "/nowhere/at/all"}}, "model.name"),
        ({"environment": {"name": "chess"}}, "environment.name"),
    ],
)
def test_config_check_refuses_with_one_line_that_names_the_field(
    store: Store, tmp_path: Path, content: dict[str, object], said: str
) -> None:
    result = nlac(store, "config", "check", written(tmp_path / "bad.yaml", content))
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not store.root.exists()


def test_config_show_prints_a_file_that_gives_the_same_configuration(store: Store, tmp_path: Path) -> None:
    original = written(tmp_path / "a.yaml", {"run": "mine", "target": {"tau": 0.5}})
    shown = tmp_path / "b.yaml"
    shown.write_text(nlac(store, "config", "show", original).stdout)
    assert load_config(shown) == load_config(original)
