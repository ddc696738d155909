"""The loss against arithmetic done by hand on full logits."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from schemas.config import ModelSection, TrainingSection
from tasks.chat.tokenizers import ChatTokenizer
from tasks.datasets.example import SoftTargets
from tasks.training import vocabulary_losses
from tasks.training.anchor import make_anchor
from tasks.training.data import encode
from tasks.training.loss import label_logprobs, row_coefficients, shared_prefix
from tasks.training.optimizer import Optimizer
from tasks.training.step import take_step
from tasks.training.trainable import Trainable
from tasks.training.vocabulary_losses import VocabularyLosses
from tests.support.tiny_rows import by_hand, close, critic, encoded, gradients, policy


def test_label_logprobs_are_those_of_the_full_logits_whatever_the_padding_and_shared_beginning(
    trainable: Trainable, chat: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = trainable.model
    rows = encoded(chat, [critic(1), critic(2), critic(3)])  # all prompts begin alike
    assert shared_prefix(rows) > 32 and len({row.tokens for row in rows}) > 1
    monkeypatch.setattr(vocabulary_losses, "LOGITS", 7 * trainable.model.config.vocab_size)
    for together in (rows, [*rows, *encoded(chat, [policy(5)])], [rows[1]]):
        for row, logprobs in zip(together, label_logprobs(base, together), strict=True):
            torch.testing.assert_close(logprobs, by_hand(base, row), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("anchored", [False, True])
def test_logits_are_computed_where_a_label_token_is_predicted_and_a_chunk_at_a_time(
    trainable: Trainable,
    chat: ChatTokenizer,
    model_section: ModelSection,
    monkeypatch: pytest.MonkeyPatch,
    anchored: bool,
) -> None:
    """Forwards and backwards, of hard and soft labels; with an anchor the base's logits, as many, stand beside them."""
    vocabulary, most = trainable.model.config.vocab_size, 7
    monkeypatch.setattr(vocabulary_losses, "LOGITS", most * vocabulary * (2 if anchored else 1))
    soft = SoftTargets(((7, 9),) * 9, ((-1.0, -2.0),) * 9)
    assert len(chat.segment_ids(critic(0).segments)[1]) == 9
    batch = encoded(chat, [replace(critic(0), soft=soft), critic(1), policy(1), policy(7)])
    anchor = (
        make_anchor(0.3, frozenset(row.row_id for row in batch), trainable, model_section)
        if anchored
        else None
    )
    positions: list[int] = []
    head = trainable.model.get_output_embeddings()
    hook = head.register_forward_hook(lambda _, __, logits: positions.append(logits.numel() // vocabulary))
    record = take_step(trainable, _optimizer(trainable), batch, 0, 4, anchor)
    hook.remove()
    assert max(positions) <= most
    # Once in the forward pass, and once more in the backward pass.
    assert sum(positions) == 2 * record.label_tokens * (2 if anchored else 1)
    assert record.tokens > 2 * record.label_tokens


@pytest.mark.parametrize("with_base", [False, True])
@pytest.mark.parametrize("rows_at_once", [1, 2, 100])
def test_losses_and_gradients_of_logits_are_those_of_the_formulas(
    with_base: bool, rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hard targets, soft ones, and soft ones filled up, against torch's own differentiation; and p = (3/4, 1/4) by
    hand."""
    monkeypatch.setattr(vocabulary_losses, "CACHED", rows_at_once * 5)
    generator = torch.Generator().manual_seed(0)
    logits, base = (torch.randn(4, 5, generator=generator) for _ in range(2))
    logits[0] = torch.tensor([3.0, 1.0, 1e-9, 1e-9, 1e-9]).log()  # p_theta = (3/4, 1/4, 0, 0, 0)
    ids = torch.tensor([[0, 1], [4, 0], [2, 3], [1, 4]])
    shares = torch.tensor([[0.75, 0.25], [1.0, 0.0], [0.9, 0.1], [0.5, 0.5]])
    weights = torch.tensor([[0.3, 1.0, 2.0, 0.1], [1.5, 0.2, 0.4, 1.0]])[: 1 + with_base]

    def composed(logits: torch.Tensor) -> torch.Tensor:
        logprobs = logits.log_softmax(dim=1)
        losses = [-(shares * logprobs.gather(1, ids)).sum(dim=1)]
        if with_base:
            losses.append((logprobs.exp() * (logprobs - base.log_softmax(dim=1))).sum(dim=1))
        return torch.stack(losses)

    def both(compute: Callable[[torch.Tensor], torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        leaf = logits.clone().requires_grad_()
        losses = compute(leaf)
        (losses * weights).sum().backward()
        assert leaf.grad is not None
        return losses.detach(), leaf.grad

    found = both(lambda x: VocabularyLosses.apply(x, ids, shares, base if with_base else None))
    for ours, theirs in zip(found, both(composed), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert found[0][0, 0].item() == pytest.approx(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)))


def test_gradients_flow_through_the_shared_beginning(trainable: Trainable, chat: ChatTokenizer) -> None:
    base = trainable.model
    rows = encoded(chat, [critic(1), critic(2), critic(3)])
    torch.cat(label_logprobs(base, rows)).sum().backward()
    shared = gradients(trainable)
    torch.cat([by_hand(base, row) for row in rows]).sum().backward()
    assert close(shared, gradients(trainable))


def test_the_shared_beginning_leaves_every_row_a_prompt_token(chat: ChatTokenizer) -> None:
    row = encode(critic(1), chat, 256)
    assert shared_prefix([row, row]) == len(row.prompt_ids) - 1
    assert shared_prefix([row]) == 0
    other = replace(row, prompt_ids=(0, *row.prompt_ids))
    assert shared_prefix([row, other]) == 0


def test_a_short_beginning_is_shared_by_many_rows(chat: ChatTokenizer) -> None:
    row = encode(critic(1), chat, 256)
    rows = [replace(row, prompt_ids=(*row.prompt_ids[:8], number)) for number in range(5)]
    assert shared_prefix(rows) == 8  # spares 32 tokens
    assert shared_prefix(rows[:4]) == 0


def test_the_batch_loss_is_weighted_critic_mean_plus_policy_mean(
    trainable: Trainable, chat: ChatTokenizer, model_section: ModelSection
) -> None:
    base = trainable.model
    batch = encoded(chat, [critic(1, 0.5), critic(2, 0.2), critic(3, 1.0), policy(1), policy(2)])
    assert row_coefficients(batch) == pytest.approx([0.5 / 3, 0.2 / 3, 1 / 3, 1 / 2, 1 / 2])
    nll = [-by_hand(base, row).mean().item() for row in batch]
    record = take_step(trainable, _optimizer(trainable), batch, 0, 2)
    assert record.critic_loss == pytest.approx((0.5 * nll[0] + 0.2 * nll[1] + nll[2]) / 3, rel=1e-4)
    assert record.policy_loss == pytest.approx((nll[3] + nll[4]) / 2, rel=1e-4)
    assert record.loss == pytest.approx(record.critic_loss + record.policy_loss)
    assert (record.rows, record.tokens) == (5, sum(row.tokens for row in batch))
    assert record.label_tokens == sum(len(row.label_ids) for row in batch)


def test_a_batch_of_one_role_has_no_loss_of_the_other(trainable: Trainable, chat: ChatTokenizer) -> None:
    record = take_step(trainable, _optimizer(trainable), encoded(chat, [policy(1)]), 0, 4)
    assert record.critic_loss is None and record.policy_loss == record.loss


def test_only_label_tokens_have_a_loss(trainable: Trainable, chat: ChatTokenizer) -> None:
    """The sum of the parts is the whole: a prompt token has no term, a label token has one."""
    base = trainable.model
    row = encode(critic(2), chat, 256)
    moved = replace(  # the label's first five tokens given instead of predicted
        row, prompt_ids=row.prompt_ids + row.label_ids[:5], label_ids=row.label_ids[5:]
    )
    whole, rest = label_logprobs(base, [row])[0], label_logprobs(base, [moved])[0]
    assert len(whole) == len(row.label_ids)
    torch.testing.assert_close(whole[5:], rest, rtol=1e-4, atol=1e-5)


def test_micro_batches_give_the_gradient_of_the_whole_batch(
    trainable: Trainable, chat: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With roles and lengths spread unevenly over the micro-batches."""
    batch = encoded(chat, [critic(i, 0.1 + i / 10) for i in range(5)] + [policy(1), policy(7)])
    optimizer = _optimizer(trainable)
    monkeypatch.setattr(optimizer, "step", lambda: None)  # leave the gradients to be compared
    monkeypatch.setattr(optimizer, "clip", lambda: 1.0)
    seen = []
    for size in (7, 3, 1):
        take_step(trainable, optimizer, batch, 0, size)
        seen.append(gradients(trainable))
    assert close(seen[0], seen[1]) and close(seen[0], seen[2])


def _optimizer(trainable: Trainable) -> Optimizer:
    return Optimizer(trainable.parameters, TrainingSection(), None)
