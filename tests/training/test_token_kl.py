"""token_kl: cross-entropy against the backup's distribution, by hand and by enumeration."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

from schemas.config import ModelSection, TrainingSection
from tasks.chat.tokenizers import ChatTokenizer
from tasks.datasets.example import SoftTargets
from tasks.training.data import Encoded, encode
from tasks.training.loss import label_logprobs, targets, token_losses
from tasks.training.optimizer import Optimizer
from tasks.training.records import TrainingError
from tasks.training.step import take_step
from tasks.training.trainable import Trainable, make_trainable
from tests.support.tiny_rows import by_hand, critic, gradients, policy


@pytest.fixture
def trainable(model_section: ModelSection) -> Trainable:
    return make_trainable(model_section.model_copy(update={"train": "full"}), None, seed=0)


def soft_row(chat: ChatTokenizer, ids: tuple[int, ...], logprobs: tuple[float, ...]) -> Encoded:
    """A critic row with the same distribution at every token of its description."""
    example = critic(1)
    tokens = len(chat.segment_ids(example.segments)[1])
    return encode(replace(example, soft=SoftTargets((ids,) * tokens, (logprobs,) * tokens)), chat, 256)


def test_the_top_k_is_renormalised_by_hand(chat: ChatTokenizer) -> None:
    """.5, .2 and .1 of the mass, .2 of it elsewhere: 5/8, 2/8 and 1/8."""
    row = soft_row(chat, (7, 9, 3), (math.log(0.5), math.log(0.2), math.log(0.1)))
    begin, end = row.segment_spans[1]
    for ids, shares in row.targets[begin:end]:
        assert ids == (7, 9, 3) and shares == pytest.approx((5 / 8, 2 / 8, 1 / 8))


def test_the_thought_and_the_end_of_turn_keep_their_own_token(chat: ChatTokenizer) -> None:
    soft, hard = soft_row(chat, (7, 9), (-1.0, -2.0)), encode(critic(1), chat, 256)
    begin, end = soft.segment_spans[1]
    assert (begin, end) == (len(soft.label_ids) - 1 - (end - begin), len(soft.label_ids) - 1)
    outside = [*range(begin), *range(end, len(soft.label_ids))]
    assert [soft.targets[i] for i in outside] == [hard.targets[i] for i in outside]
    assert [hard.targets[i] for i in outside] == [((soft.label_ids[i],), (1.0,)) for i in outside]


def test_hard_and_soft_rows_of_different_k_share_a_batch(trainable: Trainable, chat: ChatTokenizer) -> None:
    """Each token's loss is -sum p log p_theta, whatever else is beside it."""
    three = soft_row(chat, (7, 9, 3), (math.log(0.5), math.log(0.2), math.log(0.1)))
    two = soft_row(chat, (5, 6), (0.0, -1.0))
    rows = [three, encode(policy(2), chat, 256), two]
    ids, shares = targets(rows)
    assert ids.shape == shares.shape == (sum(len(row.label_ids) for row in rows), 3)
    torch.testing.assert_close(shares.sum(dim=1), torch.ones(len(shares)))
    losses = token_losses(trainable.model, rows)[0].split([len(row.label_ids) for row in rows])
    for row, loss in zip(rows, losses, strict=True):
        all_ids = torch.tensor([[*row.prompt_ids, *row.label_ids]])
        logprobs = trainable.model(input_ids=all_ids).logits[0].log_softmax(-1)
        for position, (tokens, probabilities) in enumerate(row.targets):
            at = logprobs[len(row.prompt_ids) + position - 1]
            expected = -sum(p * at[token] for token, p in zip(tokens, probabilities, strict=True))
            torch.testing.assert_close(loss[position], expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(losses[1], -by_hand(trainable.model, rows[1]), rtol=1e-4, atol=1e-5)


def test_scores_are_of_the_label_itself_whatever_its_targets(
    trainable: Trainable, chat: ChatTokenizer
) -> None:
    soft, hard = soft_row(chat, (7, 9), (-1.0, -2.0)), encode(critic(1), chat, 256)
    assert torch.equal(label_logprobs(trainable.model, [soft])[0], label_logprobs(trainable.model, [hard])[0])


def test_at_full_k_its_expectation_over_sampled_labels_is_that_of_sft(
    trainable: Trainable, chat: ChatTokenizer
) -> None:
    """Loss and gradient, over all nine descriptions of two tokens that p_B writes with a vocabulary of three."""
    words = (ord("a"), ord("b"), ord("c"))
    first = (0.6, 0.3, 0.1)  # p_B(y1)
    second = ((0.2, 0.5, 0.3), (0.7, 0.2, 0.1), (0.1, 0.1, 0.8))  # p_B(y2 | y1)
    row = encode(replace(critic(1), segments=("Thought: low\nFuture:", "xy")), chat, 256)
    begin, end = row.segment_spans[1]
    assert end - begin == 2

    def form(soft: bool) -> tuple[float, dict[str, torch.Tensor]]:
        expected = 0.0
        for (i, one), (j, other) in itertools.product(enumerate(words), repeat=2):
            label = (*row.label_ids[:begin], one, other, *row.label_ids[end:])
            hard = [((token,), (1.0,)) for token in label]
            if soft:
                hard[begin:end] = [(words, first), (words, second[i])]
            sampled = replace(row, label_ids=label, targets=tuple(hard))
            loss = first[i] * second[i][j] * token_losses(trainable.model, [sampled])[0].mean()
            loss.backward()
            expected += loss.item()
        return expected, gradients(trainable)

    sft_loss, sft_gradients = form(soft=False)
    kl_loss, kl_gradients = form(soft=True)
    assert kl_loss == pytest.approx(sft_loss, rel=1e-5)
    assert kl_gradients.keys() == sft_gradients.keys()
    for name, gradient in sft_gradients.items():
        assert gradient.norm() > 0
        assert (kl_gradients[name] - gradient).norm() <= 1e-4 * gradient.norm()


def test_a_rows_loss_stays_the_mean_over_its_label_tokens(trainable: Trainable, chat: ChatTokenizer) -> None:
    row = soft_row(chat, (7, 9), (-1.0, -2.0))
    per_token, _ = token_losses(trainable.model, [row])
    record = take_step(trainable, Optimizer(trainable.parameters, TrainingSection(), None), [row], 0, 4)
    assert record.critic_loss == pytest.approx(per_token.mean().item(), rel=1e-5)


def test_top_k_of_other_tokens_is_refused_by_name(chat: ChatTokenizer) -> None:
    example = replace(critic(1), soft=SoftTargets(((7,),), ((0.0,),)))
    with pytest.raises(TrainingError, match=r"critic/1: .* of 1 tokens .* tokenizer of model\.name"):
        encode(example, chat, 256)
