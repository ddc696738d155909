"""Rows that a stage trained on leave the program, and another trainer reads the same tokens in them."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from typer.testing import Result

from schemas.config import Config
from storage.store import Store
from tasks.chat.messages import Message
from tasks.chat.tokenizers import ChatTokenizer, load_chat_tokenizer
from tasks.datasets.example import Example
from tasks.export.rows import chat_row
from tasks.pipeline.iterations import frozen_config, run_iteration
from tasks.training.data import encode
from tests.support import cli
from tests.support.families import FAMILIES, make_checkpoint, make_tokenizer

STAGES = {"critic-sft": "critic", "policy-distillation": "policy"}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, make_config: Callable[..., Config]) -> Store:
    """A run with one iteration."""
    store = Store(tmp_path_factory.mktemp("rows") / "data")
    asyncio.run(run_iteration(store, make_config()))
    return store


def nlac(store: Store, *words: str) -> Result:
    return cli.nlac(store, *words, "--run", "trial")


def exported(store: Store, stage: str, folder: Path) -> list[dict]:
    target = folder / f"{stage}.jsonl"
    result = nlac(store, "export", stage, str(target))
    assert result.exit_code == 0, result.stderr
    rows = [json.loads(line) for line in target.read_text(encoding="utf-8").splitlines()]
    assert f"{len(rows)} rows" in result.stdout
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_every_row_of_its_own_that_the_stage_trained_on_is_a_prompt_and_a_completion(
    done: Store, tmp_path: Path, stage: str
) -> None:
    rows = exported(done, stage, tmp_path)
    committed = done.committed("trial", stage, 0)
    assert committed is not None
    trained = committed.scan("training_rows").filter(pl.col("role") == STAGES[stage]).collect()
    assert len(rows) and {row["id"] for row in rows} == set(trained["source_id"])
    lengths = {row["source_id"]: row["prompt_tokens"] + row["label_tokens"] for row in trained.to_dicts()}
    config = frozen_config(done, "trial", 0)
    assert config is not None
    chat = load_chat_tokenizer(config.model.name)
    for row in rows:
        assert set(row) == {"prompt", "completion", "chat_template_kwargs", "id", "weight"}
        assert [message["role"] for message in row["completion"]] == ["assistant"]
        assert row["prompt"][0]["role"] == "system" and row["prompt"][-1]["role"] == "user"
        text = chat.tokenizer.apply_chat_template(
            row["prompt"] + row["completion"], tokenize=False, **row["chat_template_kwargs"]
        )
        # One token a byte: the template's line end behind the turn is all that we don't train on.
        assert len(chat.tokenizer.encode(text, add_special_tokens=False)) == lengths[row["id"]] + 1
    assert all(0 < row["weight"] <= 1 for row in rows)


@pytest.mark.slow
def test_parquet_holds_the_same_rows(done: Store, tmp_path: Path) -> None:
    rows = exported(done, "critic-sft", tmp_path)
    assert nlac(done, "export", "critic-sft", str(tmp_path / "rows.parquet")).exit_code == 0
    assert pl.read_parquet(tmp_path / "rows.parquet").to_dicts() == rows


def test_what_cannot_be_written_is_said_in_one_line(done: Store, tmp_path: Path) -> None:
    (tmp_path / "there.jsonl").touch()
    for words, said in (
        (["critic-sft", str(tmp_path / "there.jsonl")], "nothing is overwritten"),
        (["critic-sft", str(tmp_path / "rows.csv")], ".jsonl or .parquet"),
        (["policy-distillation", str(tmp_path / "new.jsonl"), "--iteration", "3"], "there are iterations: 0"),
    ):
        result = nlac(done, "export", *words)
        assert result.exit_code == 1 and said in result.stderr, result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["there.jsonl"]


def test_rows_for_a_model_without_system_role_are_such_as_its_template_takes() -> None:
    chat = ChatTokenizer(make_tokenizer(FAMILIES["gemma"]))
    messages = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"})
    row = chat_row(chat, Example("row", "policy", messages, ("Hi",)))
    assert row["prompt"] == [{"role": "user", "content": "Be brief.\n\nHello"}]
    assert chat.tokenizer.apply_chat_template(row["prompt"] + row["completion"], tokenize=False)


@pytest.mark.parametrize("family", ["chatml", "gemma", "qwen3", "llama3"])
def test_trl_trains_on_the_rows_as_they_are_and_on_the_same_tokens(
    done: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    trl = pytest.importorskip("trl", reason="TRL is not installed: pip install trl datasets")
    from datasets import load_dataset

    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    checkpoint = make_checkpoint(FAMILIES[family], tmp_path / "model")
    chat = load_chat_tokenizer(checkpoint)
    examples = [
        Example(row["id"], "policy", tuple(row["prompt"]), (row["completion"][0]["content"],))
        for row in exported(done, "policy-distillation", tmp_path)
    ]
    file = tmp_path / "fit.jsonl"
    file.write_text("".join(json.dumps(chat_row(chat, example)) + "\n" for example in examples))
    trainer = trl.SFTTrainer(
        model=str(checkpoint),
        train_dataset=load_dataset("json", data_files=str(file), split="train", cache_dir=str(tmp_path / "cache")),
        args=trl.SFTConfig(
            output_dir=str(tmp_path / "out"), max_steps=1, max_length=None, use_cpu=True, report_to="none",
            per_device_train_batch_size=2, bf16=False, save_strategy="no", gradient_checkpointing=False,
        ),
    )  # fmt: skip
    for example, read in zip(examples, trainer.train_dataset, strict=True):
        row = encode(example, chat, 6000)
        ours = [*row.prompt_ids, *row.label_ids]
        assert read["input_ids"][: len(ours)] == ours
        assert chat.tokenizer.decode(read["input_ids"][len(ours) :]).strip() == ""
        assert read["labels"][: len(ours)] == [-100] * len(row.prompt_ids) + list(row.label_ids)
    trainer.train()
    assert trainer.state.global_step == 1


@pytest.mark.parametrize("family", ["qwen3", "qwq"])
def test_a_hidden_thought_is_in_the_completion_with_both_its_marks(family: str) -> None:
    chat = ChatTokenizer(make_tokenizer(FAMILIES[family]))
    asked = (Message(role="user", content="Where to?"),)
    row = chat_row(chat, Example("row", "critic", asked, ("Future:", " left"), reasoning="a wall"))
    (said,) = row["completion"]
    assert said["content"] == "<think>\na wall\n</think>\n\nFuture: left"
    assert row["chat_template_kwargs"]["enable_thinking"] is True
    plain = chat_row(chat, Example("row", "critic", asked, ("Future:", " left")))
    assert plain["completion"][0]["content"] == "Future: left"
    assert plain["chat_template_kwargs"]["enable_thinking"] is False
