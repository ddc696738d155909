"""What holds a model to its base: the KL by hand, the base untouched by the adapter, general chat in every batch."""

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn

from schemas.config import AnchorSection, ModelSection, TrainingSection
from tasks.chat.tokenizers import ChatTokenizer
from tasks.datasets.example import Example
from tasks.training import vocabulary_losses
from tasks.training.anchor import anchored_losses, make_anchor
from tasks.training.batches import MixedIn, plan_batches
from tasks.training.data import Encoded, encode
from tasks.training.loss import label_logprobs, row_coefficients, token_losses
from tasks.training.optimizer import Optimizer
from tasks.training.records import TrainingResult
from tasks.training.step import take_step
from tasks.training.trainable import Trainable, make_trainable
from tests.support.tiny_rows import critic, policy, train_tiny

SECTION = TrainingSection(batch_rows=4, micro_batch_rows=2, learning_rate=0.01)
CRITICS, POLICIES = [critic(i, 0.2 + i / 10) for i in range(6)], [policy(i) for i in range(3)]


def chat_row(number: int) -> Example:
    """A row of general conversation."""
    messages = ({"role": "user", "content": f"What is {number} plus one?"},)
    return Example(f"chat/{number}", "chat", messages, (str(number + 1),))


CHATS = [chat_row(i) for i in range(5)]


class ThreeWords(nn.Module):
    """A model of three words: its hidden state is always 1, so its logits are the column `head.weight`."""

    def __init__(self, logits: list[float]) -> None:
        super().__init__()
        self.head = nn.Linear(1, 3, bias=False)
        self.head.weight.data = torch.tensor(logits)[:, None]
        self.device = torch.device("cpu")
        self.config = SimpleNamespace(_attn_implementation="eager")

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def get_decoder(self) -> Any:
        return lambda input_ids, **_: SimpleNamespace(last_hidden_state=torch.ones(*input_ids.shape, 1))


@contextmanager
def always(model: Any) -> Iterator[Any]:
    yield model


def moved(section: ModelSection) -> Trainable:
    """A model in training that is no longer its base."""
    made = make_trainable(section, None, seed=1)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(2)
        for name, parameter in made.parameters.items():
            if "lora_B" in name or section.train == "full":
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return made


def encoded(chat: ChatTokenizer, *examples: Example) -> list[Encoded]:
    return [encode(example, chat, 256) for example in examples]


def run(model: ModelSection, out: Path, section: TrainingSection = SECTION, **changes: Any) -> TrainingResult:
    return train_tiny(model, out, section, **changes)


def test_the_kl_and_its_gradient_are_those_written_out(chat: ChatTokenizer) -> None:
    """p_theta = (1/2, 1/4, 1/4) and p_base = (1/4, 1/4, 1/2): KL = 1/2 log 2 - 1/4 log 2 = 1/4 log 2. Its gradient
    in the logits is p_theta (log p_theta/p_base - KL) = (3/8, -1/16, -5/16) log 2, at every label token."""
    theta, base = (ThreeWords([math.log(p) for p in ps]) for ps in ((0.5, 0.25, 0.25), (0.25, 0.25, 0.5)))
    (row,) = encoded(chat, critic(1))
    labels = (2, 0, 1)
    row = replace(row, label_ids=labels, targets=tuple(((label,), (1.0,)) for label in labels))
    losses, divergences, _ = anchored_losses(theta, [row], lambda: always(base))
    assert losses.tolist() == pytest.approx([math.log(4), math.log(2), math.log(4)])
    assert divergences.tolist() == pytest.approx([math.log(2) / 4] * 3)
    divergences.mean().backward()
    gradient = theta.head.weight.grad[:, 0] / math.log(2)
    assert gradient.tolist() == pytest.approx([3 / 8, -1 / 16, -5 / 16])
    assert base.head.weight.grad is None


@pytest.mark.parametrize("form", ["lora", "full"])
@pytest.mark.parametrize("chunked", [False, True])
def test_the_kl_is_that_of_full_logits_whatever_the_chunks(
    model_section: ModelSection,
    chat: ChatTokenizer,
    form: str,
    chunked: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    section = model_section.model_copy(update={"train": form})
    trainable, untouched = (
        moved(section),
        make_trainable(section.model_copy(update={"train": "full"}), None, 0).model,
    )
    rows = encoded(chat, critic(1), critic(2), policy(3))
    anchor = make_anchor(0.5, frozenset(), trainable, section)
    assert anchor
    if chunked:
        monkeypatch.setattr(vocabulary_losses, "LOGITS", 14 * trainable.model.config.vocab_size)
    losses, divergences, _ = anchored_losses(trainable.model, rows, anchor.base)
    torch.testing.assert_close(losses, token_losses(trainable.model, rows)[0], rtol=1e-4, atol=1e-5)
    divergences.sum().backward()
    gradients = {name: parameter.grad.clone() for name, parameter in trainable.parameters.items()}
    expected = []
    for row in rows:
        ids = torch.tensor([[*row.prompt_ids, *row.label_ids]])
        at = slice(len(row.prompt_ids) - 1, -1)
        ours = trainable.model(input_ids=ids).logits[0, at].log_softmax(-1)
        with torch.no_grad():
            base = untouched(input_ids=ids).logits[0, at].log_softmax(-1)
        expected.append((ours.exp() * (ours - base)).sum(-1))
    torch.testing.assert_close(divergences, torch.cat(expected), rtol=1e-3, atol=1e-5)
    for parameter in trainable.parameters.values():
        parameter.grad = None
    torch.cat(expected).sum().backward()
    for name, parameter in trainable.parameters.items():
        assert (gradients[name] - parameter.grad).norm() <= 1e-3 * parameter.grad.norm(), name


def test_the_base_is_the_model_without_its_adapter_and_leaves_it_as_it_was(
    model_section: ModelSection, chat: ChatTokenizer
) -> None:
    trainable = moved(model_section)
    rows = encoded(chat, critic(1))
    with torch.no_grad():
        before = label_logprobs(trainable.model, rows)[0]
        anchor = make_anchor(1.0, frozenset(), trainable, model_section)
        assert anchor
        with anchor.base() as base:
            assert base is trainable.model, "no second copy"
            bare = label_logprobs(base, rows)[0]
        fresh = label_logprobs(make_trainable(model_section, None, seed=9).model, rows)[0]
        assert torch.equal(bare, fresh) and not torch.allclose(bare, before, atol=1e-3)
        assert torch.equal(label_logprobs(trainable.model, rows)[0], before)
    assert all(parameter.requires_grad for parameter in trainable.parameters.values())


@pytest.mark.parametrize("form", ["lora", "full"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_kl_is_zero_before_the_first_step_and_not_after_it(
    model_section: ModelSection, tmp_path: Path, form: str, dtype: str
) -> None:
    section = model_section.model_copy(update={"train": form, "dtype": dtype})
    result = run(section, tmp_path, anchor=AnchorSection(kl=0.1))
    first, second = result.steps
    assert first.anchor_kl == 0.0
    assert second.anchor_kl is not None and second.anchor_kl > 0
    assert second.critic_loss is not None and second.policy_loss is not None
    assert second.loss == pytest.approx(second.critic_loss + second.policy_loss + 0.1 * second.anchor_kl)


@pytest.mark.parametrize("form", ["lora", "full"])
def test_an_anchor_to_a_warm_start_is_zero_there_and_leaves_the_parameters_as_they_were(
    model_section: ModelSection, chat: ChatTokenizer, tmp_path: Path, form: str
) -> None:
    section = model_section.model_copy(update={"train": form})
    run(section, tmp_path / "warm")
    warm = tmp_path / "warm" / "adapter"
    first, second = run(
        section, tmp_path / "on", start=warm, anchored_to=warm, anchor=AnchorSection(kl=0.1)
    ).steps
    assert first.anchor_kl == 0.0 and second.anchor_kl and second.anchor_kl > 0
    to_base = run(section, tmp_path / "base", start=warm, anchor=AnchorSection(kl=0.1)).steps[0]
    assert to_base.anchor_kl and to_base.anchor_kl > 0

    trainable, rows = moved(section), encoded(chat, critic(1))
    before = {name: value.detach().clone() for name, value in trainable.tensors.items()}
    anchor = make_anchor(1.0, frozenset(), trainable, section, warm)
    assert anchor
    with anchor.base() as base, torch.no_grad():
        held = label_logprobs(base, rows)[0]
    with torch.no_grad():
        expected = label_logprobs(make_trainable(section, warm, seed=0).model, rows)[0]
    assert torch.equal(held, expected)
    assert all(torch.equal(value, before[name]) for name, value in trainable.tensors.items())
    assert all(parameter.requires_grad for parameter in trainable.parameters.values())


def test_rehearsed_demonstrations_take_their_share_and_have_a_mean_of_their_own(
    model_section: ModelSection, tmp_path: Path
) -> None:
    told = [replace(policy(i), row_id=f"told/{i}", role="demonstration") for i in range(5)]
    result = run(model_section, tmp_path / "a", demonstrations=told, rehearse_share=0.25)
    assert [step.rows for step in result.steps] == [4, 4, 4], (
        "two own rows, one of the other role, one rehearsed"
    )
    assert sorted(result.uses[row.row_id] for row in told) == [0, 0, 1, 1, 1]
    for step in result.steps:
        assert step.critic_loss and step.policy_loss and step.demonstration_loss
        assert step.loss == pytest.approx(step.critic_loss + step.policy_loss + step.demonstration_loss)
    plain = run(model_section, tmp_path / "b").steps
    assert [step.demonstration_loss for step in plain] == [None] * len(plain)


def test_the_kl_is_a_mean_over_the_label_tokens_of_the_own_rows_alone(
    model_section: ModelSection, chat: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainable = moved(model_section)
    batch = encoded(chat, critic(1), policy(1), critic(5), chat_row(3))
    own = frozenset({"critic/1", "critic/5"})
    anchor = make_anchor(0.3, own, trainable, model_section)
    assert anchor
    _, divergences, _ = anchored_losses(trainable.model, batch, anchor.base)
    parts = divergences.detach().split([len(row.label_ids) for row in batch])
    expected = torch.cat([parts[0], parts[2]]).mean().item()
    optimizer = Optimizer(trainable.parameters, TrainingSection(), None)
    monkeypatch.setattr(optimizer, "step", lambda: None)  # leave the gradients to be compared
    monkeypatch.setattr(optimizer, "clip", lambda: 1.0)
    seen = []
    for size in (4, 1):
        record = take_step(trainable, optimizer, batch, 0, size, anchor)
        assert record.anchor_kl == pytest.approx(expected, rel=1e-4)
        seen.append({name: parameter.grad for name, parameter in trainable.parameters.items()})
        for parameter in trainable.parameters.values():
            parameter.grad = None
    for name, gradient in seen[0].items():
        assert (gradient - seen[1][name]).norm() <= 1e-4 * gradient.norm()


@pytest.mark.slow
def test_a_larger_coefficient_keeps_the_model_closer_to_its_base(
    model_section: ModelSection, tmp_path: Path
) -> None:
    section = SECTION.model_copy(update={"epochs": 8})
    last = [
        run(model_section, tmp_path / str(kl), section=section, anchor=AnchorSection(kl=kl))
        .steps[-1]
        .anchor_kl
        for kl in (0.001, 1.0)
    ]
    assert last[0] is not None and last[1] is not None and last[1] < 0.7 * last[0]


def test_without_an_anchor_nothing_is_computed(model_section: ModelSection, tmp_path: Path) -> None:
    full = model_section.model_copy(update={"train": "full"})
    assert make_anchor(0.0, frozenset(), make_trainable(full, None, 0), full) is None
    result = run(model_section, tmp_path)
    assert (
        [step.anchor_kl for step in result.steps] == [step.chat_loss for step in result.steps] == [None, None]
    )


def test_chat_rows_have_a_mean_of_their_own(model_section: ModelSection, chat: ChatTokenizer) -> None:
    trainable = moved(model_section)
    batch = encoded(chat, critic(1, 0.5), policy(1), chat_row(1), chat_row(2))
    assert row_coefficients(batch) == [0.5, 1.0, 0.5, 0.5]
    nll = [-logprobs.mean().item() for logprobs in label_logprobs(trainable.model, batch)]
    record = take_step(trainable, Optimizer(trainable.parameters, TrainingSection(), None), batch, 0, 4)
    assert record.chat_loss == pytest.approx((nll[2] + nll[3]) / 2, rel=1e-4)
    assert record.loss == pytest.approx(0.5 * nll[0] + nll[1] + (nll[2] + nll[3]) / 2, rel=1e-4)


@given(
    own=st.integers(1, 50),
    others=st.integers(0, 12),
    chats=st.integers(0, 12),
    batch_rows=st.integers(4, 20),
    epochs=st.integers(1, 2),
)
def test_every_batch_has_its_share_of_chat_beside_that_of_the_other_role(
    own: int, others: int, chats: int, batch_rows: int, epochs: int
) -> None:
    numbers = range(own + others, own + others + chats)
    plan = plan_batches(
        range(own),
        batch_rows,
        epochs,
        3,
        MixedIn(range(own, own + others), 0.25),
        MixedIn(numbers, 0.25, "chat_share"),
    )
    expected = (min(round(batch_rows * 0.25), others), min(round(batch_rows * 0.25), chats))
    uses = Counter(row for batch in plan for row in batch)
    for batch in plan:
        assert len(batch) <= batch_rows and len(set(batch)) == len(batch)
        kinds = Counter("own" if r < own else "other" if r < own + others else "chat" for r in batch)
        assert (kinds["other"], kinds["chat"]) == expected and kinds["own"] >= 1
    assert all(uses[row] == epochs for row in range(own))
    for group in (range(own, own + others), numbers):
        counts = [uses[row] for row in group]
        assert not counts or max(counts) - min(counts) <= 1


def test_without_chat_the_plan_is_what_it_was() -> None:
    other = MixedIn(range(40, 50), 0.25)
    further = (MixedIn(), MixedIn(range(50, 60), field="chat_share"))
    plans = [plan_batches(range(40), 8, 2, 3, other, chat) for chat in further]
    assert plans[0] == plans[1]


def test_shares_without_room_for_own_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="lower mix or chat_share"):
        plan_batches(range(4), 4, 1, 0, MixedIn(range(4, 8), 0.5), MixedIn(range(8, 12), 0.5, "chat_share"))


def test_an_anchored_run_with_chat_gives_the_same_bytes_each_time(
    model_section: ModelSection, tmp_path: Path
) -> None:
    """Six own rows, two a batch beside one of the other role and one of chat: three steps."""
    anchored = {"chat": CHATS, "anchor": AnchorSection(kl=0.2, chat_share=0.25)}
    results = []
    for out in ("a", "b"):
        results.append(run(model_section, tmp_path / out, **anchored))
        torch.rand(3)  # the process's random state plays no part
    assert results[0] == results[1] and [step.rows for step in results[0].steps] == [4, 4, 4]
    assert sum(results[0].uses[row.row_id] for row in CHATS) == 3
    files = [tmp_path / out / "adapter" / "adapter_model.safetensors" for out in ("a", "b")]
    assert files[0].read_bytes() == files[1].read_bytes()
    run(model_section, tmp_path / "plain")
    plain = load_file(tmp_path / "plain" / "adapter" / "adapter_model.safetensors")
    assert any(not torch.equal(value, plain[name]) for name, value in load_file(files[0]).items())
