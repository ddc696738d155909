"""Micro-batches in parallel: the same sums, in the same order, as one after another."""

from dataclasses import replace

import pytest
import torch

from schemas.config import TrainingSection
from tasks.chat.tokenizers import ChatTokenizer
from tasks.training.fused.parallel_micro_batches import ParallelMicroBatches, parallel_micro_batches_for
from tasks.training.loss import label_logprobs
from tasks.training.optimizer import Optimizer
from tasks.training.step import take_step
from tasks.training.trainable import Trainable
from tests.support.tiny_rows import close, critic, encoded, gradients, policy


def test_parallel_micro_batches_give_the_losses_and_gradients_of_sequential_ones_and_the_same_bytes_each_time(
    trainable: Trainable, chat: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = encoded(chat, [critic(i, 0.1 + i / 10) for i in range(5)] + [policy(1), policy(7)])
    optimizer = Optimizer(trainable.parameters, TrainingSection(), None)
    monkeypatch.setattr(optimizer, "step", lambda: None)  # leave the gradients to be compared
    monkeypatch.setattr(optimizer, "clip", lambda: 1.0)
    seen = []
    for side in (trainable, *2 * [replace(trainable, parallel=ParallelMicroBatches(3))]):
        seen.append((take_step(side, optimizer, batch, 0, 2), gradients(trainable)))
    (one, by_one), (many, by_many), (again, by_again) = seen
    assert close(by_one, by_many) and one.critic_loss == pytest.approx(many.critic_loss, rel=1e-5)
    assert many == again and all(torch.equal(by_many[name], by_again[name]) for name in by_many)


def test_the_pool_keeps_the_order_the_gradient_mode_and_the_callers_threads() -> None:
    threads = torch.get_num_threads()
    pool = ParallelMicroBatches(2)
    weight = torch.ones(3, requires_grad=True)
    assert list(pool.map(lambda n: n * n, range(20))) == [n * n for n in range(20)]
    assert all(product.requires_grad for product in pool.map(lambda n: weight * n, range(4)))
    with torch.no_grad():
        assert not any(product.requires_grad for product in pool.map(lambda n: weight * n, range(4)))
    assert set(pool.map(lambda _: torch.get_num_threads(), range(4))) == {max(1, threads // 2)}
    assert torch.get_num_threads() == threads


def test_an_error_in_a_thread_reaches_the_caller_and_the_pool_goes_on() -> None:
    pool = ParallelMicroBatches(2)
    with pytest.raises(ZeroDivisionError):
        list(pool.map(lambda n: 1 / n, [1, 0, 2]))
    assert list(pool.map(lambda n: 1 / n, [1, 2])) == [1, 0.5]


def test_there_are_as_many_threads_as_passes_and_cores_and_one_where_rotary_embeddings_depend_on_length(
    trainable: Trainable, chat: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    found = parallel_micro_batches_for(trainable.model, 3)
    assert found.count == 3 and parallel_micro_batches_for(trainable.model, 8).count == 4
    rows = encoded(chat, [critic(1), critic(2), critic(3)])
    alone = [label_logprobs(trainable.model, [row])[0] for row in rows]
    for scores, together in zip(
        alone, found.map(lambda row: label_logprobs(trainable.model, [row])[0], rows), strict=True
    ):
        torch.testing.assert_close(scores, together)
    monkeypatch.setitem(trainable.model.config.rope_parameters, "rope_type", "dynamic")
    assert parallel_micro_batches_for(trainable.model, 8).count == 1
