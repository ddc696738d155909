"""Whole training runs on the tiny model."""

from collections.abc import Sequence
from dataclasses import fields
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from schemas.config import ModelSection, TrainerSection, TrainingSection
from schemas.rows import Row, TrainingStep
from tasks.chat.tokenizers import ChatTokenizer
from tasks.training import step as training_step
from tasks.training import trainer
from tasks.training.adapters import WEIGHTS, form_of
from tasks.training.data import encode
from tasks.training.divergence import refuse_divergence
from tasks.training.model import load_base
from tasks.training.records import NothingToTrain, StepRecord, TrainingError, TrainingResult
from tasks.training.trainable import make_trainable
from tests.support.tiny_rows import CRITICS, POLICIES, by_hand, policy, train_tiny

SECTION = TrainingSection(batch_rows=4, micro_batch_rows=2, learning_rate=0.01)


def run(model: ModelSection, out: Path, section: TrainingSection = SECTION, **changes: Any) -> TrainingResult:
    return train_tiny(model, out, section, **changes)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / WEIGHTS[form_of(folder)])


def test_a_run_reports_its_steps_uses_and_tokens(
    model_section: ModelSection, chat: ChatTokenizer, tmp_path: Path
) -> None:
    told: list[tuple[int, int]] = []
    result = run(model_section, tmp_path, on_step=lambda record, total: told.append((record.step, total)))
    assert told == [(0, 2), (1, 2)]  # six critic rows, three a batch, with one policy row
    assert [step.rows for step in result.steps] == [4, 4]
    assert {row.row_id: result.uses[row.row_id] for row in CRITICS} == {row.row_id: 1 for row in CRITICS}
    assert sum(result.uses[row.row_id] for row in POLICIES) == 2
    row = encode(CRITICS[1], chat, 256)
    assert result.prompt_tokens["critic/1"] == len(row.prompt_ids)
    assert result.label_tokens["critic/1"] == len(row.label_ids)
    assert result.target_moved == pytest.approx(0.75)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "optimizer.pt", "target"]


def test_a_step_has_the_fields_of_its_table() -> None:
    of_table = TrainingStep.model_fields.keys() - Row.model_fields.keys() - {"stage", "adapter_version"}
    assert {field.name for field in fields(StepRecord)} == of_table


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_same_inputs_give_the_same_bytes(model_section: ModelSection, tmp_path: Path, dtype: str) -> None:
    section = model_section.model_copy(update={"dtype": dtype})
    for out in ("a", "b"):
        run(section, tmp_path / out)
        torch.rand(3)  # the process's random state plays no part
    for file in ("adapter/adapter_model.safetensors", "adapter/adapter_config.json", "optimizer.pt"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_update_reaches_the_next_forward_pass(
    model_section: ModelSection, tmp_path: Path, dtype: str
) -> None:
    """One row, many steps: the loss falls. (Autocast can hold on to copies of weights as they were.)"""
    section = SECTION.model_copy(update={"epochs": 30, "learning_rate": 0.02})
    result = run(
        model_section.model_copy(update={"dtype": dtype}), tmp_path, section, main=CRITICS[:1], other=[]
    )
    losses = [step.loss for step in result.steps]
    assert len(losses) == 30
    assert losses[1] < losses[0] and losses[-1] < 0.5 * losses[0]


def test_scores_are_the_log_probabilities_before_the_first_update(
    model_section: ModelSection, chat: ChatTokenizer, tmp_path: Path
) -> None:
    result = run(model_section, tmp_path, main=[*CRITICS, policy(9)])
    assert result.scores.keys() == {row.row_id for row in CRITICS}  # others have no scored segment
    base = load_base(model_section)
    for example in CRITICS:
        row = encode(example, chat, 256)
        begin, end = row.segment_spans[1]
        expected = by_hand(base, row)[begin:end].tolist()  # a fresh adapter is the base
        assert result.scores[example.row_id] == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_the_target_is_the_average_of_what_each_step_left(
    model_section: ModelSection, tmp_path: Path
) -> None:
    run(model_section, tmp_path / "one", main=CRITICS[:3], mix=0.0, tau=0.5)
    start, target = tmp_path / "one" / "adapter", tmp_path / "one" / "target"
    result = run(
        model_section, tmp_path / "two", main=CRITICS[:3], mix=0.0, start=start, target=target, tau=0.25
    )
    assert len(result.steps) == 1
    before, after = weights(target), weights(tmp_path / "two" / "adapter")
    for name, value in weights(tmp_path / "two" / "target").items():
        torch.testing.assert_close(value, 0.75 * before[name] + 0.25 * after[name])
    make_trainable(model_section, tmp_path / "two" / "target", seed=0)


def test_without_tau_no_target_is_written(model_section: ModelSection, tmp_path: Path) -> None:
    assert run(model_section, tmp_path, tau=None).target_moved is None
    assert not (tmp_path / "target").exists()


def test_carrying_the_optimizer_equals_training_without_a_break(
    model_section: ModelSection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four steps equal two and two, warm-up included, given the same batches."""
    plan = [[0, 1], [2, 3, 4], [5], [1, 4]]
    section = SECTION.model_copy(update={"warmup_steps": 3, "weight_decay": 0.01})

    def steps(chosen: Sequence[list[int]], out: str, **changes: Any) -> TrainingResult:
        monkeypatch.setattr(trainer, "plan_batches", lambda *_: chosen)
        return run(model_section, tmp_path / out, section, **changes)

    whole = steps(plan, "whole")
    first = steps(plan[:2], "first")
    left = {name: tmp_path / "first" / name for name in ("adapter", "target")}
    carried = {
        "start": left["adapter"],
        "target": left["target"],
        "optimizer": tmp_path / "first" / "optimizer.pt",
    }
    second = steps(plan[2:], "second", **carried)
    rates = [step.learning_rate for step in (*first.steps, *second.steps)]
    assert rates == [step.learning_rate for step in whole.steps]
    assert rates == pytest.approx([0.01 / 3, 0.02 / 3, 0.01, 0.01])
    for folder in ("adapter", "target"):
        apart = weights(tmp_path / "second" / folder)
        for name, value in weights(tmp_path / "whole" / folder).items():
            torch.testing.assert_close(apart[name], value, rtol=1e-6, atol=1e-8)
    steps(plan[2:], "reset", **(carried | {"optimizer": None}))
    unlike = weights(tmp_path / "reset" / "adapter")
    assert any(not torch.allclose(unlike[n], v) for n, v in weights(tmp_path / "whole" / "adapter").items())


def test_an_optimizer_state_that_does_not_fit_is_refused(model_section: ModelSection, tmp_path: Path) -> None:
    wider = model_section.model_copy(update={"lora": model_section.lora.model_copy(update={"r": 8})})
    run(wider, tmp_path / "wide")
    state = tmp_path / "wide" / "optimizer.pt"
    with pytest.raises(TrainingError, match=r"shape .* `optimizer: reset`"):
        run(model_section, tmp_path / "out", optimizer=state)
    (tmp_path / "torn.pt").write_bytes(state.read_bytes()[:100])
    with pytest.raises(TrainingError, match=r"torn\.pt.* can't be read .* `optimizer: reset`"):
        run(model_section, tmp_path / "out", optimizer=tmp_path / "torn.pt")
    assert not (tmp_path / "out").exists()


def test_a_target_of_another_shape_is_refused(model_section: ModelSection, tmp_path: Path) -> None:
    wider = model_section.model_copy(update={"lora": model_section.lora.model_copy(update={"r": 8})})
    run(wider, tmp_path / "wide")
    with pytest.raises(TrainingError, match=r"target parameters do not match .* model\.lora"):
        run(model_section, tmp_path / "out", target=tmp_path / "wide" / "target")


def test_nothing_to_train_on_loads_no_model_and_writes_nothing(
    model_section: ModelSection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[ModelSection] = []
    monkeypatch.setattr(trainer, "make_trainable", lambda section, *_: loaded.append(section))
    with pytest.raises(NothingToTrain, match="0 rows given"):
        run(model_section, tmp_path / "out", main=[])
    short = model_section.model_copy(update={"context_length": 16})
    with pytest.raises(NothingToTrain, match=r"6 rows given, 6 too long .*context_length"):
        run(short, tmp_path / "out")
    assert not loaded and not (tmp_path / "out").exists()


def test_a_row_too_long_is_left_out_and_named(
    model_section: ModelSection, chat: ChatTokenizer, tmp_path: Path
) -> None:
    longest = max(encode(row, chat, 256).tokens for row in CRITICS)
    tight = model_section.model_copy(update={"context_length": longest - 1})
    result = run(tight, tmp_path, other=[])
    assert result.too_long and not result.too_long.keys() & result.uses.keys()
    assert len(result.uses) + len(result.too_long) == len(CRITICS)


@pytest.mark.filterwarnings("ignore")
def test_a_loss_that_is_not_finite_names_the_step_and_writes_nothing(
    model_section: ModelSection, tmp_path: Path
) -> None:
    section = SECTION.model_copy(update={"learning_rate": 1e30, "epochs": 3})
    with pytest.raises(TrainingError, match=r"step [1-9]: .* lower learning_rate"):
        run(model_section, tmp_path / "out", section)
    assert not (tmp_path / "out").exists()


@pytest.mark.filterwarnings("ignore")
def test_a_last_step_that_breaks_the_parameters_writes_nothing(
    model_section: ModelSection, tmp_path: Path
) -> None:
    section = SECTION.model_copy(
        update={"learning_rate": 1e39}
    )  # beyond float32; the one step's loss is fine
    with pytest.raises(TrainingError, match=r"the last step: .* is not finite; lower learning_rate"):
        run(model_section, tmp_path / "out", section, main=CRITICS[:3], mix=0.0)
    assert not (tmp_path / "out").exists()


@pytest.mark.filterwarnings("ignore")
def test_a_checkpoint_never_holds_broken_parameters(model_section: ModelSection, tmp_path: Path) -> None:
    section = SECTION.model_copy(update={"learning_rate": 1e39})
    checkpoint = tmp_path / "checkpoint.pt"
    every = TrainerSection(checkpoint_steps=1)
    with pytest.raises(TrainingError, match=r"step 0: .* is not finite"):
        run(model_section, tmp_path / "out", section, checkpoint=checkpoint, trainer=every)
    assert not checkpoint.exists(), "a stage that is run again would never come out of it"


def test_a_diverging_loss_ends_the_training_and_writes_nothing(
    model_section: ModelSection, tmp_path: Path
) -> None:
    section = SECTION.model_copy(update={"learning_rate": 1.0, "epochs": 40})
    whole = model_section.model_copy(update={"train": "full"})
    told: list[float] = []
    with pytest.raises(TrainingError, match=r"step \d+: the loss diverges: .* lower learning_rate"):
        run(whole, tmp_path / "out", section, on_step=lambda record, total: told.append(record.loss))
    assert len(told) < 80 and not (tmp_path / "out").exists()


def step(number: int, critic: float, policy: float | None = None) -> StepRecord:
    return StepRecord(
        step=number,
        loss=critic + (policy or 0.0),
        critic_loss=critic,
        policy_loss=policy,
        chat_loss=None,
        demonstration_loss=None,
        anchor_kl=None,
        learning_rate=0.1,
        grad_norm=1.0,
        rows=4,
        label_tokens=8,
        tokens=16,
    )


@pytest.mark.parametrize(
    ("losses", "diverges"),  # a uniform guess over 256 tokens costs 5.5 nats, and half as much again 8.3
    [
        ([2.0, 2.0, 2.0, 2.0], False),
        ([2.0, 9.0, 9.0, 9.0], True),
        ([2.0, 9.0, 9.0, 2.0], False),  # it came back
        ([2.0, 8.0, 8.0, 8.0], False),  # worse than a guess, and not by half
        ([9.0, 9.0, 9.0, 9.0], False),  # it began so
        ([9.0, 14.0, 14.0, 14.0], True),
        ([9.0, 9.0], False),
    ],
)
def test_a_loss_diverges_that_stays_far_above_a_guess_and_above_its_beginning(
    losses: list[float], diverges: bool
) -> None:
    steps = [step(number, 1.0, loss) for number, loss in enumerate(losses)]
    if not diverges:
        return refuse_divergence(steps, 256)
    with pytest.raises(TrainingError, match=r"step 3: the loss diverges"):
        refuse_divergence(steps, 256)


def out_of_memory(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Micro-batches of more rows than `most` don't fit; the allocator itself says so, of every other one."""
    computed, calls = training_step.token_losses, count()

    def token_losses(model: Any, rows: Any, dtype: Any) -> Any:
        if len(rows) > most and next(calls) % 2:
            torch.empty(1 << 50, dtype=torch.uint8)
        return computed(model, rows, dtype)

    monkeypatch.setattr(training_step, "token_losses", token_losses)


def test_micro_batches_that_memory_does_not_hold_are_halved_and_the_result_is_theirs(
    model_section: ModelSection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    small = SECTION.model_copy(update={"micro_batch_rows": 1})
    assert run(model_section, tmp_path / "small", small).micro_batch_rows == 1
    out_of_memory(monkeypatch, 1)
    result = run(model_section, tmp_path / "halved", SECTION)
    assert result.micro_batch_rows == 1
    said = "step 0: the device's memory does not hold micro-batches of 2 rows; it goes on with 1"
    assert caplog.messages == [said], "later steps begin with what fitted"
    for file in ("adapter/adapter_model.safetensors", "optimizer.pt"):
        assert (tmp_path / "halved" / file).read_bytes() == (tmp_path / "small" / file).read_bytes()


def test_a_row_that_memory_does_not_hold_is_refused_with_a_remedy(
    model_section: ModelSection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out_of_memory(monkeypatch, 0)
    with pytest.raises(TrainingError, match=r"of 1 rows; set trainer\.gradient_checkpointing"):
        run(model_section, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_two_rows_of_one_id_are_refused(model_section: ModelSection, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="same row_id"):
        run(model_section, tmp_path, main=[CRITICS[0], CRITICS[0]])
