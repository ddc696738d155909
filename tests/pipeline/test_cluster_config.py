"""The shipped cluster files are the same program: only model, engines and sizes are replaced here.

A whole iteration of each: a random model behind the family's chat template plays every role under a format, and trains
in two processes, sharded, as in the file. Its thought would never end, so where a file's model thinks, a second
iteration has rules that do; it trains in one process.
"""

import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from schemas.config import Config
from schemas.load import PROJECT_ROOT, ConfigError, load_config
from storage.store import Store
from storage.verify import verify
from tasks.algorithms import ALGORITHMS
from tasks.environments.splits import played_tasks
from tasks.environments.twenty_questions import TURNS, TwentyQuestions
from tasks.pipeline.checks import check_config
from tasks.pipeline.plan import plan
from tasks.pipeline.registry import STAGES
from tests.support.families import FAMILIES, Family, make_checkpoint, make_tokenizer
from tests.support.iterations import ROLES, Iterate

FOLDER = PROJECT_ROOT / "configs" / "cluster"
FILES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
STEPS = 30_720  # paper
ITERATIONS = 320  # configs/cluster/parts/training.yaml
THINKS = {
    "math": "tests.support.thinking_rules:sums",
    "twenty-questions": "tests.support.thinking_rules:questions",
    "tau-bench": "tests.support.thinking_rules:serves",
}
LINE_CHARS = 300  # a random model's lines end by chance
TOKENS = 1_500  # a character takes up to four of its tokens
OTHERS = {"oracle": "tests.support.question_rules:oracle", "user": "tests.support.service:customer"}


def parts(name: str) -> tuple[str, str]:
    """(model, task) of a file's name."""
    return next((name.removesuffix(f"-{task}"), task) for task in THINKS if name.endswith(task))


def problems(folder: Path, file: str, numbers: range) -> str:
    lines = [json.dumps({"problem": f"What is {n} + {n}?", "answer": str(2 * n)}) for n in numbers]
    (folder / file).write_text("\n".join(lines))
    return str(folder / file)


def legible(family: Family, checkpoint: Path) -> Path:
    """A checkpoint whose model ends its lines and seldom writes a mark of the template: most texts are whole."""
    from transformers import AutoModelForCausalLM

    model, tokenizer = AutoModelForCausalLM.from_pretrained(checkpoint), make_tokenizer(family)
    rows = model.get_output_embeddings().weight.data
    rows[list(tokenizer.added_tokens_decoder.keys() - {tokenizer.eos_token_id})] = 0.0
    rows[tokenizer.encode("\n", add_special_tokens=False)] *= 4.0
    model.save_pretrained(checkpoint)
    return checkpoint


def shrunk(name: str, folder: Path, *, rules: bool) -> Config:
    """That very file, with a small model of its family and few rows; rules or this model in place of the server."""
    model, task = parts(name)
    config = load_config(FOLDER / f"{name}.yaml")
    content = config.model_dump()
    family = FAMILIES["qwq" if model == "qwq-32b" else "qwen2.5"]
    content["model"] |= {
        "name": str(legible(family, make_checkpoint(family, folder / "model", "qwen2"))), "revision": None,
        "device": "cpu", "dtype": "float32",
    }  # fmt: skip
    scripts = {**OTHERS, "local": THINKS[task]} if rules else OTHERS
    engines = {engine: {"backend": "scripted", "rules": script} for engine, script in scripts.items()}
    content["engines"] = {name: engines.get(name, {"backend": "transformers"}) for name in content["engines"]}
    for role in ROLES:
        content["roles"][role] |= {
            "structured": not rules, "thinking": rules, "line_chars": LINE_CHARS, "max_tokens": TOKENS,
        }  # fmt: skip
    content["trainer"] |= {"processes": 1, "shard": "none"} if rules else {"processes": 2}
    content["rollout"] |= {"episodes": 4, "max_steps": 3}
    content["replay"]["transitions"] = 8
    content["critic"]["batch_rows"] = content["policy"]["batch_rows"] = 8
    content["improvement"]["states"] = 6
    content["evaluation"] |= {"episodes": 2, "validation_episodes": 0}
    if task == "twenty-questions":
        content["environment"]["options"].pop("objects")  # the shipped table
    if task == "math":
        content["environment"]["options"] = {
            "problems": problems(folder, "train.jsonl", range(2, 30)),
            "eval_problems": problems(folder, "eval.jsonl", range(30, 40)),
        }
    return Config.model_validate(content)


def test_there_is_a_file_for_each_model_and_task() -> None:
    assert {parts(name) for name in FILES} == {(m, t) for m in ("qwen2.5-7b", "qwq-32b") for t in THINKS}


@pytest.mark.parametrize("name", FILES)
def test_one_server_plays_all_roles_and_the_gpu_pools_compute(name: str) -> None:
    config = load_config(FOLDER / f"{name}.yaml")
    engine = config.engines["local"]
    assert engine.serve is not None and {section.engine for _, section in config.roles} == {"local"}
    assert engine.options["enable_prefix_caching"]
    parallel = engine.options["tensor_parallel_size"] * engine.options["data_parallel_size"]
    assert parallel == config.trainer.processes == 8
    assert config.model.revision and config.model.device == "cuda"
    assert config.roles.policy.thinking == (parts(name)[0] == "qwq-32b")
    assert config.environment.name.replace("_", "-") == parts(name)[1]
    assert {STAGES[s].pool for s in ALGORITHMS["nlac"].stages} == {"inference", "training"}


@pytest.mark.parametrize("name", FILES)
def test_they_can_be_checked_elsewhere_and_make_the_papers_optimizer_steps(name: str, tmp_path: Path) -> None:
    config = load_config(FOLDER / f"{name}.yaml")
    check_config(config, tmp_path, elsewhere=True)
    rows, own = {"critic": config.replay.transitions, "policy": config.improvement.states}, {}
    for stage in rows:
        section = getattr(config, stage)
        own[stage] = round(section.batch_rows * (1 - ALGORITHMS["nlac"].mix(config, stage)))
    assert ITERATIONS * sum(math.ceil(rows[stage] / own[stage]) for stage in rows) == STEPS
    assert config.replay.transitions >= 2 * config.rollout.episodes * config.rollout.max_steps


@pytest.mark.parametrize("model", ["qwen2.5-7b", "qwq-32b"])
def test_20_questions_are_played_over_the_papers_splits_and_turns(model: str, tmp_path: Path) -> None:
    config = load_config(FOLDER / f"{model}-twenty-questions.yaml")
    options = dict(config.environment.options)
    blank = [""] * 1600
    table = {"name": [f"object {number}" for number in range(1600)], "synonyms": blank}
    pl.DataFrame(table | {"category": blank, "definition": blank}).write_parquet(tmp_path / "objects.parquet")
    assert options.pop("objects").endswith("things_concepts.tsv"), "the shipped table has 231 objects"
    environment = TwentyQuestions(**options, objects=str(tmp_path / "objects.parquet"))
    assert len(environment.tasks("train")) == 1000
    assert len(environment.tasks("eval")) == 500 == config.evaluation.episodes
    assert len(played_tasks(environment, "validation")) == 100 == config.evaluation.validation_episodes
    assert config.rollout.max_steps == TURNS == 20


def test_without_a_gpu_or_vllm_one_is_refused_with_a_remedy(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available() and importlib.util.find_spec("vllm"):
        pytest.skip("this machine has a GPU and vLLM: nothing to refuse")
    with pytest.raises(
        ConfigError, match=r"cuda is set and there is none|vllm is not installed|Qwen/Qwen2\.5-7B-Instruct"
    ):
        check_config(load_config(FOLDER / "qwen2.5-7b-twenty-questions.yaml"), tmp_path / "data")
    assert not (tmp_path / "data").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "rules"), [*((f, False) for f in FILES), *((f, True) for f in FILES if parts(f)[0] == "qwq-32b")]
)
def test_each_runs_an_iteration_with_its_parallel_layout(
    name: str, rules: bool, store: Store, iterate: Iterate, tmp_path: Path
) -> None:
    needed: dict[str, Any] = {"math": "math_verify", "tau-bench": "tau_bench"}
    if (package := needed.get(parts(name)[1])) and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    config = shrunk(name, tmp_path, rules=rules)
    check_config(config, store.root)
    done = {result.committed.manifest.stage: result.committed for result in iterate(config)}
    assert tuple(done) == tuple(row.stage for row in plan(config))
    assert verify(store) == []
    for stage in ("critic-sft", "policy-distillation"):
        rows = done[stage].scan("training_rows").collect()
        assert "ok" in set(rows["status"]), rows["error"].unique()
        assert done[stage].manifest.adapters
