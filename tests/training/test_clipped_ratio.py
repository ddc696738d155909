"""The clipped-ratio loss by hand: ratios, clipping, normalisation, importance weights, and whole steps."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from schemas.config import ModelSection, PolicyGradientSection, TrainerSection, TrainingSection
from tasks.chat.tokenizers import ChatTokenizer
from tasks.datasets.example import Example
from tasks.training import trainer
from tasks.training.clipped_ratio import ClippedRatio, make_clipped_ratio
from tasks.training.data import Encoded
from tasks.training.job import PolicyGradient
from tasks.training.loss import label_logprobs
from tasks.training.optimizer import Optimizer
from tasks.training.records import StepRecord
from tasks.training.step import take_step
from tasks.training.trainable import Trainable
from tests.support.tiny_rows import by_hand, close, encoded, gradients, policy, sampled, train_tiny

HALF = math.log(0.5)


def turn(number: int, tokens: int, advantage: float, episode: str) -> Encoded:
    """A turn of so many tokens, without a prompt."""
    example = sampled(number, range(tokens), advantage, episode=episode)
    return Encoded(
        example.row_id, "policy", (), tuple(range(tokens)), ((0, tokens),), 0, 1.0, (), example.sampled
    )


def loss_of(rows: Sequence[Encoded], old: float = HALF, budget: int = 1, **settings: object) -> ClippedRatio:
    """The loss of rows whose tokens all had probability exp(old)."""
    section = PolicyGradientSection.model_validate(settings)
    found = make_clipped_ratio(
        PolicyGradient(section, budget), rows, {row.row_id: (old,) * len(row.label_ids) for row in rows}
    )
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope", "clipped"),
    [
        (1.0, 2.0, -2.0, -2.0, 0),
        (1.5, 1.0, -1.2, 0.0, 1),  # above the range where higher is better: no reward for going on
        (1.5, -1.0, 1.5, 1.5, 0),  # and where lower is better: the whole way back
        (0.5, 1.0, -0.5, -0.5, 0),
        (0.5, -1.0, 0.9, 0.0, 1),  # below 1 - clip_low
        (0.95, -1.0, 0.95, 0.95, 0),
        (1e30, 1.0, -1.2, 0.0, 1),
    ],
)
def test_a_ratio_is_clipped_on_the_side_that_the_advantage_favours(
    ratio: float, advantage: float, loss: float, slope: float, clipped: int
) -> None:
    """`slope` is d loss / d log p_theta: -rho A inside the range, 0 where it is clipped."""
    row = turn(0, 1, advantage, "e")
    logprob = torch.tensor([HALF + math.log(ratio)], requires_grad=True)
    losses, measured = loss_of([row], clip_low=0.1, clip_high=0.2).losses(-logprob, [row])
    losses.sum().backward()
    assert losses.tolist() == pytest.approx([loss]) and measured[0].item() == clipped
    assert logprob.grad is not None and logprob.grad.tolist() == pytest.approx([slope])


def test_a_turn_has_the_geometric_mean_of_its_tokens_ratios_at_sequence_level() -> None:
    """Ratios 3 and 3/4 have the mean 3/2, clipped to 1.2; 2 and 1/2 have 1, whose slope each token shares."""
    for ratios, loss, slope in (((3.0, 0.75), -1.2, 0.0), ((2.0, 0.5), -1.0, -1.0)):
        row = turn(0, 2, 1.0, "e")
        logprobs = torch.tensor([HALF + math.log(ratio) for ratio in ratios], requires_grad=True)
        losses, measured = loss_of([row], level="sequence").losses(-logprobs, [row])
        losses.sum().backward()
        assert losses.tolist() == pytest.approx([loss] * 2)
        assert logprobs.grad is not None and logprobs.grad.tolist() == pytest.approx([slope] * 2)
        # k3 of each token: rho - 1 - log rho
        assert measured[1].item() == pytest.approx(sum(r - 1 - math.log(r) for r in ratios))


def test_importance_weights_are_cut_off() -> None:
    """The engine reported p = e^-1: e/2 = 1.36 is below the cap 1.5, and e above it."""
    row = turn(0, 2, 1.0, "e")
    loss = replace(loss_of([row], importance_cap=1.5), old={row.row_id: (HALF, 0.0)})
    assert loss.losses(-torch.tensor([HALF, 0.0]), [row])[0].tolist() == pytest.approx([-math.e / 2, -1.5])
    gap = loss.engine_gap([row])
    first, second = 1 + HALF, 1.0
    assert (gap.mean, gap.largest) == pytest.approx(((first + second) / 2, second))
    assert gap.k3 == pytest.approx((math.e / 2 - 1 - first + math.e - 1 - second) / 2)


def test_the_normalisations_are_those_of_their_papers() -> None:
    """Episode a has turns of 2 and 4 tokens, episode b one of 3; an episode may have 10."""
    rows = [turn(0, 2, 1.0, "a"), turn(1, 4, 1.0, "a"), turn(2, 3, -1.0, "b")]
    expected = {
        "grpo": [2 / 6 / 2, 4 / 6 / 2, 1 / 2],
        "dapo": [2 / 9, 4 / 9, 3 / 9],
        "dr_grpo": [2 / 20, 4 / 20, 3 / 20],
    }
    for name, shares in expected.items():
        loss = loss_of(rows, budget=10, normalisation=name)
        assert list(loss.coefficients(rows).values()) == pytest.approx(shares)
    # With one of its turns a third of episode a is there: 4/3 episodes.
    some = loss_of(rows).coefficients([rows[0], rows[2]])
    assert list(some.values()) == pytest.approx([(1 / 3) / (4 / 3), 1 / (4 / 3)])


def turns(chat: ChatTokenizer) -> list[Encoded]:
    """Two episodes, one of two turns; and a policy row with a plain label."""
    examples = [
        sampled(1, (5, 9, 40, *chat.end_ids), 1.5, episode="a"),
        sampled(2, (7,), 1.5, episode="a"),
        sampled(3, (50, 51, 52, 53, *chat.end_ids), -0.5, episode="b"),
    ]
    return encoded(chat, examples)


def clipped_ratio_of(trainable: Trainable, rows: Sequence[Encoded]) -> ClippedRatio:
    with torch.no_grad():
        old = label_logprobs(trainable.model, rows)
    known = {row.row_id: tuple(values.tolist()) for row, values in zip(rows, old, strict=True)}
    found = make_clipped_ratio(PolicyGradient(), rows, known)
    assert found is not None
    return found


def frozen_optimizer(trainable: Trainable, monkeypatch: pytest.MonkeyPatch) -> Optimizer:
    """Leaves the gradients to be compared."""
    optimizer = Optimizer(trainable.parameters, TrainingSection(), None)
    monkeypatch.setattr(optimizer, "step", lambda: None)
    monkeypatch.setattr(optimizer, "clip", lambda: 1.0)
    return optimizer


def test_the_first_step_is_the_policy_gradient_on_the_sampled_tokens_alone(
    trainable: Trainable, chat: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where p_theta is p_old, the gradient is that of -A log p, over each episode's tokens and then over episodes."""
    rows = turns(chat)
    assert [row.label_ids for row in rows[:2]] == [(5, 9, 40, *chat.end_ids), (7,)]
    record = take_step(
        trainable,
        frozen_optimizer(trainable, monkeypatch),
        rows,
        0,
        2,
        None,
        clipped_ratio_of(trainable, rows),
    )
    found = gradients(trainable)
    one, two, three = (by_hand(trainable.model, row).sum() for row in rows)
    (-1.5 * (one + two) / 5 / 2 + 0.5 * three / 5 / 2).backward()
    assert close(found, gradients(trainable))
    assert record.policy_loss == pytest.approx((-1.5 + 0.5) / 2, rel=1e-5)
    assert (record.clipped_share, record.old_kl) == (0.0, pytest.approx(0.0, abs=1e-9))
    assert record.engine_gap_mean and record.engine_gap_max and record.engine_k3
    assert 0 < record.engine_gap_mean < record.engine_gap_max


def test_micro_batches_and_plain_rows_beside_it_change_nothing_of_the_loss(
    trainable: Trainable, chat: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = turns(chat)
    loss = clipped_ratio_of(trainable, rows)
    moved = replace(loss, old={name: tuple(v - 0.3 for v in old) for name, old in loss.old.items()})
    plain = [replace(row, role="chat") for row in encoded(chat, [policy(4)])]
    optimizer = frozen_optimizer(trainable, monkeypatch)
    records, seen = [], []
    for size in (4, 2, 1):
        records.append(take_step(trainable, optimizer, [*rows, *plain], 0, size, None, moved))
        seen.append(gradients(trainable))
    assert close(seen[0], seen[1]) and close(seen[0], seen[2])
    # Every ratio is e^0.3 = 1.35: clipped to 1.2 in the episode with the positive advantage, half of ten tokens.
    for record in records:
        assert record.policy_loss == pytest.approx((-1.5 * 1.2 + 0.5 * math.exp(0.3)) / 2, rel=1e-4)
        assert record.clipped_share == pytest.approx(0.5)
        assert record.old_kl == pytest.approx(math.exp(0.3) - 1.3, rel=1e-3)
        assert record.chat_loss == pytest.approx(-by_hand(trainable.model, plain[0]).mean().item(), rel=1e-4)


SECTION = TrainingSection(batch_rows=2, micro_batch_rows=1, learning_rate=0.02, epochs=3)
TURNS: list[Example] = [
    sampled(number, (20 + number, 60, 61), 1.0 if number % 2 else -1.0) for number in range(4)
]


def test_old_log_probabilities_are_those_before_the_first_step_also_after_a_kill(
    model_section: ModelSection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns_alone = {"main": TURNS, "other": (), "tau": None}
    whole = train_tiny(model_section, tmp_path / "whole", SECTION, **turns_alone)
    assert len(whole.steps) == 6 and set(whole.scores) == {row.row_id for row in TURNS}
    drifts = [step.old_kl for step in whole.steps]
    assert drifts[0] == pytest.approx(0.0, abs=1e-9) and all(drift and drift > 1e-4 for drift in drifts[2:])
    gaps = {step.engine_gap_max for step in whole.steps}
    assert None not in gaps, "the gap is to the engine, whichever step it is"

    class Killed(Exception):
        pass

    def kill_at(record: StepRecord, total: int) -> None:
        if record.step == 3:
            raise Killed

    again = {
        **turns_alone,
        "trainer": TrainerSection(checkpoint_steps=1),
        "checkpoint": tmp_path / "checkpoint.pt",
    }
    with pytest.raises(Killed):
        train_tiny(model_section, tmp_path / "killed", SECTION, kill_at, **again)
    monkeypatch.delattr(trainer, "_scores")  # what is in the checkpoint is not computed again
    resumed = train_tiny(model_section, tmp_path / "resumed", SECTION, **again)
    assert resumed == whole
    files = [tmp_path / name / "adapter" / "adapter_model.safetensors" for name in ("whole", "resumed")]
    assert files[0].read_bytes() == files[1].read_bytes()
