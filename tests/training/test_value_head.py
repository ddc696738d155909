"""The value head: its loss by hand, its gradient through the model, and its file."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from schemas.config import ModelSection, TrainerSection, TrainingSection
from tasks.chat.tokenizers import ChatTokenizer
from tasks.datasets.example import Example, ValueTarget
from tasks.training.job import Start, ValueLoss
from tasks.training.loss import label_states
from tasks.training.records import StepRecord, TrainingError
from tasks.training.state_values import predict_values
from tasks.training.trainable import Trainable
from tasks.training.trainer import train
from tasks.training.value_head import FILE, TARGET_FILE, prompt_values, value_losses, with_value_head
from tests.support.tiny_rows import POLICIES, critic, encoded, sampled, tiny_job


def test_a_value_that_has_moved_far_gets_no_gradient_that_leads_it_on() -> None:
    """Old values 0.5 and clip 0.2: V = 1 counts as 0.7. Returns 2 (the way on), 0 (the way back), and V = 0.6."""
    values = torch.tensor([1.0, 1.0, 0.6], requires_grad=True)
    old, returns = torch.full((3,), 0.5), torch.tensor([2.0, 0.0, 2.0])
    losses = value_losses(values, old, returns, 0.2)
    assert losses.tolist() == pytest.approx([1.3**2 / 2, 1 / 2, 1.4**2 / 2])
    losses.sum().backward()
    assert values.grad is not None and values.grad.tolist() == pytest.approx([0.0, 1.0, -1.4])
    assert value_losses(values, old, returns, None).tolist() == pytest.approx([0.5, 0.5, 1.4**2 / 2])


def test_a_value_is_read_at_the_last_prompt_token(trainable: Trainable, chat: ChatTokenizer) -> None:
    made = with_value_head(trainable, None)
    head = made.value_head
    assert head is not None and set(made.parameters) - set(trainable.parameters) == {
        "value_head.weight", "value_head.bias"
    }  # fmt: skip
    torch.nn.init.normal_(head.weight, generator=torch.Generator().manual_seed(0))
    rows = encoded(chat, [sampled(1, (5, 9), 1.0), sampled(3, (7,), 1.0)])
    found = prompt_values(head, label_states(trainable.model, rows), rows)
    for row, value in zip(rows, found, strict=True):
        ids = torch.tensor([row.prompt_ids])
        hidden = trainable.model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
        torch.testing.assert_close(value, head(hidden[0, -1])[0], rtol=1e-4, atol=1e-5)


def turns() -> list[Example]:
    """Turns whose returns a head can tell apart by their prompts."""
    return [
        replace(sampled(number, (20 + number,), 0.0), value=ValueTarget(float(number % 2)))
        for number in range(4)
    ]


SECTION = TrainingSection(batch_rows=4, micro_batch_rows=2, learning_rate=0.01, epochs=25)
VALUED = ValueLoss(coefficient=0.5)


@pytest.mark.parametrize("form", ["lora", "full"])
def test_a_head_learns_returns_beside_the_policy_and_goes_on_after_a_kill(
    model_section: ModelSection, tmp_path: Path, form: str
) -> None:
    section = model_section.model_copy(update={"train": form})
    rows = turns()
    job = tiny_job(section, tmp_path / "whole", SECTION, main=rows, other=(), tau=None, value_loss=VALUED)
    whole = train(job, lambda *_: None)
    first, last = whole.steps[0], whole.steps[-1]
    assert first.value_loss == pytest.approx(1 / 4), "V is 0 at first, and half of the returns are 1"
    assert first.policy_loss == pytest.approx(0.0, abs=1e-6) and first.loss == pytest.approx(1 / 8)
    assert last.value_loss is not None and last.value_loss < 0.05

    class Killed(Exception):
        pass

    def kill_at(record: StepRecord, total: int) -> None:
        if record.step == 5:
            raise Killed

    again = replace(
        job,
        out=tmp_path / "again",
        trainer=TrainerSection(checkpoint_steps=1),
        checkpoint=tmp_path / "checkpoint.pt",
    )
    with pytest.raises(Killed):
        train(again, kill_at)
    assert train(again, lambda *_: None) == whole
    heads = [torch.load(job.out / FILE, weights_only=True) for job in (job, again)]
    assert all(torch.equal(heads[0][name], heads[1][name]) for name in ("weight", "bias"))

    adapter = tmp_path / "whole" / "adapter"
    values, too_long = predict_values(section, adapter, job.out / FILE, rows, 4)
    assert not too_long and [values[row.row_id] > 0.5 for row in rows] == [False, True, False, True]
    # A training that starts from them has these values in its first step.
    start = Start(adapter, optimizer=job.out / "optimizer.pt", value_head=job.out / FILE)
    went_on = train(replace(job, out=tmp_path / "on", start=start), lambda *_: None)
    expected = sum((values[row.row_id] - n % 2) ** 2 for n, row in enumerate(rows)) / 2 / 4
    assert went_on.steps[0].value_loss == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_a_head_of_another_model_is_refused(trainable: Trainable, tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(1, 3), "bias": torch.zeros(1)}, tmp_path / FILE)
    with pytest.raises(TrainingError, match="this value head can't be used"):
        with_value_head(trainable, tmp_path / FILE)


def critics() -> list[Example]:
    """Rows that train a value alone, with weights."""
    return [
        replace(critic(number, weight), segments=(), scored_segment=None, value=ValueTarget(target))
        for number, (weight, target) in enumerate([(1.0, 2.0), (0.5, -1.0), (0.25, 1.0)])
    ]


def test_a_row_without_a_label_trains_its_value_alone_by_its_weight(
    model_section: ModelSection, tmp_path: Path
) -> None:
    once = SECTION.model_copy(update={"epochs": 1})
    job = tiny_job(
        model_section, tmp_path, once, main=critics(), other=POLICIES[:1], tau=None, value_loss=ValueLoss()
    )
    [step] = train(job, lambda *_: None).steps
    # Q is 0 at first: (1 * 2^2 + 0.5 * 1^2 + 0.25 * 1^2) / 2, over three rows.
    assert step.value_loss == pytest.approx((4 + 0.5 + 0.25) / 2 / 3)
    assert step.critic_loss is None and step.policy_loss is not None
    assert step.loss == pytest.approx(step.value_loss + step.policy_loss)
    assert not (tmp_path / TARGET_FILE).exists(), "without tau there is no target"


def test_the_targets_head_is_the_average_of_the_heads_after_each_step(
    model_section: ModelSection, tmp_path: Path
) -> None:
    """tau = 0.25: after one step 0.25 h1, after two 0.75 * 0.25 h1 + 0.25 h2; a third goes on from the file."""

    def trained(name: str, epochs: int, start: Start | None = None) -> dict[str, dict[str, torch.Tensor]]:
        section = SECTION.model_copy(update={"epochs": epochs})
        job = tiny_job(
            model_section,
            tmp_path / name,
            section,
            main=critics(),
            other=(),
            tau=0.25,
            value_loss=ValueLoss(),
        )
        train(replace(job, start=start or job.start), lambda *_: None)
        return {file: torch.load(tmp_path / name / file, weights_only=True) for file in (FILE, TARGET_FILE)}

    one, two = trained("one", 1), trained("two", 2)
    after = tmp_path / "two"
    start = Start(
        after / "adapter", after / "target", after / "optimizer.pt", None, after / FILE, after / TARGET_FILE
    )
    three = trained("three", 1, start)
    for name in ("weight", "bias"):
        heads = [made[FILE][name] for made in (one, two, three)]
        averages = [made[TARGET_FILE][name] for made in (one, two, three)]
        assert heads[0].norm() > 0 and not torch.equal(heads[0], heads[1])
        torch.testing.assert_close(averages[0], 0.25 * heads[0])
        torch.testing.assert_close(averages[1], 0.75 * averages[0] + 0.25 * heads[1])
        torch.testing.assert_close(averages[2], 0.75 * averages[1] + 0.25 * heads[2])
