"""Two processes that torchrun really starts train as one does; a killed training goes on where it was."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from schemas.config import AnchorSection, ModelSection, TrainerSection, TrainingSection
from schemas.load import PROJECT_ROOT
from tasks.training.adapters import WEIGHTS
from tasks.training.launch import train_in_processes
from tasks.training.processes import Processes
from tasks.training.records import StepRecord, TrainingError, TrainingResult
from tests.support.tiny_rows import tiny_job, train_tiny

SECTION = TrainingSection(batch_rows=4, micro_batch_rows=1, learning_rate=0.01, epochs=2)
ANCHORED = AnchorSection(kl=0.1)


class Killed(Exception):
    """Stands for a kill: nothing of the training runs after it."""


def run(model: ModelSection, out: Path, processes: int = 1, **changes: Any) -> TrainingResult:
    """Train the tiny rows, in one process or several."""
    if processes == 1:
        return train_tiny(model, out, SECTION, **changes)
    on_step = changes.pop("on_step", None)
    told: list[StepRecord] = []

    def tell(record: StepRecord, total: int) -> None:
        told.append(record)
        if on_step is not None:
            on_step(record, total)

    section = changes.pop("section", SECTION)
    trainer = changes.pop("trainer", TrainerSection(processes=processes))
    result = train_in_processes(tiny_job(model, out, section, trainer=trainer, **changes), tell)
    assert told == result.steps
    return result


def same(one: TrainingResult, other: TrainingResult) -> None:
    """Equal but for the order in which numbers were added up."""
    assert len(one.steps) == len(other.steps) > 1
    for mine, theirs in zip(one.steps, other.steps, strict=True):
        for field in fields(StepRecord):
            value, expected = getattr(mine, field.name), getattr(theirs, field.name)
            assert value == (expected if expected is None else pytest.approx(expected, rel=1e-3, abs=1e-5)), (
                field
            )
    assert one.scores.keys() == other.scores.keys()
    for row, scores in one.scores.items():
        assert scores == pytest.approx(other.scores[row], rel=1e-4, abs=1e-5)
    assert (one.uses, one.target_moved) == (other.uses, other.target_moved)


def same_folders(one: Path, other: Path, form: str) -> None:
    assert sorted(p.name for p in one.iterdir()) == sorted(p.name for p in other.iterdir())
    for folder in ("adapter", "target"):
        ours, theirs = (load_file(place / folder / WEIGHTS[form]) for place in (one, other))
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            torch.testing.assert_close(value, theirs[name], rtol=1e-2, atol=5e-4)


@pytest.mark.parametrize(
    ("form", "shard"),
    [
        pytest.param("lora", "none", marks=pytest.mark.long),
        pytest.param("lora", "fsdp", marks=pytest.mark.slow),
        pytest.param("full", "fsdp", marks=pytest.mark.long),
    ],
)
def test_two_processes_train_as_one_does(
    model_section: ModelSection, tmp_path: Path, form: str, shard: str
) -> None:
    """Three rows of the one role and one of the other a step, one row a pass: a process has two passes, or, where a
    pass is left over, takes part in one that does not count."""
    section = model_section.model_copy(update={"train": form})
    trainer = TrainerSection(processes=2, shard=shard)
    alone = run(section, tmp_path / "one", anchor=ANCHORED)
    together = run(section, tmp_path / "two", 2, anchor=ANCHORED, trainer=trainer)
    same(alone, together)
    same_folders(tmp_path / "one", tmp_path / "two", form)
    one, two = (torch.load(tmp_path / place / "optimizer.pt") for place in ("one", "two"))
    assert one["steps"] == two["steps"] and one["moments"].keys() == two["moments"].keys()


@pytest.mark.long
@pytest.mark.parametrize("form", ["lora", "full"])
def test_only_the_first_process_ever_holds_the_whole_weights(tmp_path: Path, form: str) -> None:
    """Half a gigabyte in two processes: the other one's memory rises by its half, and what is passing through."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=768, intermediate_size=3072, num_hidden_layers=14, num_attention_heads=12
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, "-m", "tests.support.spread", str(tmp_path), form],
        cwd=PROJECT_ROOT, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    rises = {
        rank: (rise, whole)
        for rank, rise, whole in (map(int, line.split()) for line in done.stdout.splitlines())
    }
    assert rises.keys() == {0, 1}
    rise, whole = rises[1]
    assert whole > 500e6 and 0.4 * whole < rise < 0.7 * whole


@pytest.mark.long
def test_a_refusal_and_a_death_in_a_process_are_told_with_their_reason(
    model_section: ModelSection, tmp_path: Path
) -> None:
    wild = SECTION.model_copy(update={"learning_rate": 1e30})
    with pytest.raises(TrainingError, match=r"^step [1-9]: loss .* lower learning_rate"):
        run(model_section, tmp_path / "out", 2, section=wild)
    assert not (tmp_path / "out").exists()
    with pytest.raises(TrainingError, match=r"torchrun ended with exit code 1.*(?s:.)*TypeError"):
        run(model_section, tmp_path / "out", 2, lr_scale="no number")


def test_every_process_has_as_many_passes_and_each_item_counts_once() -> None:
    shares = [Processes(rank, 3).share("abcd") for rank in range(3)]
    assert shares == [
        [("a", True), ("d", True)],
        [("b", True), ("d", False)],
        [("c", True), ("d", False)],
    ]
    assert Processes().share([]) == []


def killed_after(steps: int) -> Callable[[StepRecord, int], None]:
    def on_step(record: StepRecord, _: int) -> None:
        if record.step + 1 == steps:
            raise Killed

    return on_step


@pytest.mark.slow
@pytest.mark.parametrize("form", ["lora", "full"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_killed_training_that_goes_on_leaves_the_very_bytes_of_one_that_was_not(
    model_section: ModelSection, tmp_path: Path, form: str, dtype: str
) -> None:
    """Killed in step 4 of 4, with a checkpoint after step 2: the records, the target and the moments are all there."""
    section = model_section.model_copy(update={"train": form, "dtype": dtype})
    whole = run(section, tmp_path / "whole")
    resumable: dict[str, Any] = {
        "checkpoint": tmp_path / "kept" / "a.pt",
        "trainer": TrainerSection(checkpoint_steps=2),
    }
    with pytest.raises(Killed):
        run(section, tmp_path / "broken", on_step=killed_after(4), **resumable)
    assert not (tmp_path / "broken").exists()
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["a.pt"]
    torch.rand(3)
    taken: list[int] = []
    again = run(section, tmp_path / "again", on_step=lambda record, _: taken.append(record.step), **resumable)
    assert taken == [0, 1, 2, 3] and again == whole
    for file in (f"adapter/{WEIGHTS[form]}", f"target/{WEIGHTS[form]}", "optimizer.pt"):
        assert (tmp_path / "again" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


@pytest.mark.long
def test_a_sharded_training_that_goes_on_ends_as_one_process_that_was_never_killed(
    model_section: ModelSection, tmp_path: Path
) -> None:
    """With all that a large model needs at once: shards, recomputed activations, checkpoints."""
    trainer = TrainerSection(processes=2, shard="fsdp", gradient_checkpointing=True, checkpoint_steps=1)
    resumable: dict[str, Any] = {"trainer": trainer, "checkpoint": tmp_path / "a.pt", "anchor": ANCHORED}
    alone = run(model_section, tmp_path / "one", anchor=ANCHORED)
    with pytest.raises(Killed):
        run(model_section, tmp_path / "broken", 2, on_step=killed_after(3), **resumable)
    kept = torch.load(tmp_path / "a.pt")["steps"]
    assert 2 <= len(kept) < len(alone.steps)
    same(alone, run(model_section, tmp_path / "two", 2, **resumable))
    same_folders(tmp_path / "one", tmp_path / "two", "lora")


def test_random_numbers_go_on_where_they_were(
    model_section: ModelSection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training draws none by itself; whoever adds dropout relies on it."""
    from tasks.training import trainer

    drawn: list[float] = []
    taken = trainer.take_step

    def drawing(*arguments: Any, **named: Any) -> StepRecord:
        drawn.append(torch.rand(1).item())
        return taken(*arguments, **named)

    monkeypatch.setattr(trainer, "take_step", drawing)
    resumable: dict[str, Any] = {
        "checkpoint": tmp_path / "a.pt",
        "trainer": TrainerSection(checkpoint_steps=2),
    }
    with pytest.raises(Killed):
        run(model_section, tmp_path / "out", on_step=killed_after(4), **resumable)
    torch.manual_seed(99)
    run(model_section, tmp_path / "out", **resumable)
    first, again = drawn[:4], drawn[4:]
    assert again == first[2:] and len(set(first)) == 4


def test_what_was_done_before_the_kill_is_not_done_again(
    model_section: ModelSection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.training import trainer

    resumable: dict[str, Any] = {
        "checkpoint": tmp_path / "a.pt",
        "trainer": TrainerSection(checkpoint_steps=1),
    }
    with pytest.raises(Killed):
        run(model_section, tmp_path / "out", on_step=killed_after(4), **resumable)
    numbers: list[int] = []
    taken = trainer.take_step

    def counted(*arguments: Any, **named: Any) -> StepRecord:
        numbers.append(arguments[3])
        return taken(*arguments, **named)

    monkeypatch.setattr(trainer, "take_step", counted)
    run(model_section, tmp_path / "out", **resumable)
    assert numbers == [3]


def test_a_checkpoint_that_can_not_be_read_is_refused_by_name(
    model_section: ModelSection, tmp_path: Path
) -> None:
    (tmp_path / "a.pt").write_bytes(b"PK torn")
    with pytest.raises(TrainingError, match=r"a\.pt: this checkpoint (?s:.)* delete it"):
        run(model_section, tmp_path / "out", checkpoint=tmp_path / "a.pt")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["lora", "full"])
def test_gradient_checkpointing_trains_alike_with_less_kept(
    model_section: ModelSection, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = model_section.model_copy(update={"train": form})
    kept: list[int] = []

    def bytes_kept(**changes: Any) -> TrainingResult:
        kept.append(0)

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            kept[-1] += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            return run(section, tmp_path / str(len(kept)), **changes)

    plain = bytes_kept(anchor=ANCHORED)
    same(plain, bytes_kept(anchor=ANCHORED, trainer=TrainerSection(gradient_checkpointing=True)))
    assert kept[1] < 0.5 * kept[0]
