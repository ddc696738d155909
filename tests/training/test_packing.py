"""Packed rows are computed as each row alone, whatever stands beside it; models that can't do that are left alone."""

from functools import partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch.nn import Module
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Gemma2Config,
    GPT2Config,
    GptOssConfig,
    Lfm2Config,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3Config,
    StableLmConfig,
)

from schemas.config import ModelSection, TrainerSection
from tasks.training.batches import micro_batches
from tasks.training.data import Encoded
from tasks.training.fused.packed_attention import attend_by_library, attend_on_cpu
from tasks.training.fused.packed_rows import group_by_length
from tasks.training.fused.packing import MULTIPLE, hidden_states, packs, use_packing
from tasks.training.model import load_base
from tasks.training.records import TrainingError
from tasks.training.trainable import make_trainable

SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
MAMBA: dict[str, Any] = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2}
BEGINNING = list(range(10, 17))
# Of like length and of others, longer than the sliding windows below, and one of a single own token.
ROWS = [[*BEGINNING, *range(3, 3 + own)] for own in (9, 1, 40, 5, 41)]


def made(config: PreTrainedConfig) -> PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config).eval()
    return model


def one_by_one(model: PreTrainedModel, rows: list[list[int]]) -> list[torch.Tensor]:
    decoder = model.get_decoder()
    return [decoder(input_ids=torch.tensor([row]), use_cache=False).last_hidden_state[0] for row in rows]


@pytest.mark.parametrize("shared", [0, len(BEGINNING)])
@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**SIZES),
        Qwen3Config(**SIZES, head_dim=8),
        MistralConfig(**SIZES, head_dim=8, sliding_window=6),
        Gemma2Config(**SIZES, head_dim=8, sliding_window=6),
        GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=64),
    ],
    ids=lambda config: config.model_type,
)
def test_packed_rows_and_their_gradients_are_those_of_each_row_alone(
    config: PreTrainedConfig, shared: int
) -> None:
    model = made(config)
    parameters = list(model.get_decoder().parameters())
    expected = [states[shared:] for states in one_by_one(model, ROWS)]
    weights = [torch.linspace(-1, 1, states.numel()).view(states.shape) for states in expected]

    def gradients(states: list[torch.Tensor]) -> list[torch.Tensor]:
        loss = sum(((s * w).sum() for s, w in zip(states, weights, strict=True)), torch.zeros(()))
        return list(torch.autograd.grad(loss, parameters))

    of_each = gradients(expected)
    use_packing(model)
    assert packs(model)
    computed: list[int] = []
    hook = model.get_decoder().register_forward_pre_hook(
        lambda _, __, given: computed.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    states, begins = hidden_states(model, ROWS, shared)
    hook.remove()
    # Nothing twice, no padding of each row, and one filling of all.
    assert len(states) == shared + sum(len(row) - shared for row in ROWS)
    assert computed[0] % MULTIPLE == 0 and len(states) <= computed[0] < len(states) + MULTIPLE
    own = [states[begin : begin + len(row) - shared] for begin, row in zip(begins, ROWS, strict=True)]
    for mine, theirs in zip(chain(own, gradients(own)), chain(expected, of_each), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "config",
    [
        BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4),  # attention of its own
        GptOssConfig(**SIZES, head_dim=8, num_local_experts=4, num_experts_per_tok=2),  # sinks
        Lfm2Config(**SIZES, layer_types=["conv", "full_attention"]),
        MambaConfig(**MAMBA),
        StableLmConfig(**SIZES),  # does not hand on what it is told
    ],
    ids=lambda config: config.model_type,
)
def test_a_model_that_can_not_read_packed_rows_computes_them_one_by_one(config: PreTrainedConfig) -> None:
    model = made(config)
    expected = one_by_one(model, ROWS)
    use_packing(model)
    assert not packs(model)
    states, begins = hidden_states(model, ROWS, len(BEGINNING))
    for begin, row, alone in zip(begins, ROWS, expected, strict=True):
        own = len(row) - len(BEGINNING)
        torch.testing.assert_close(states[begin : begin + own], alone[len(BEGINNING) :])


@pytest.mark.parametrize("window", [None, 4, 200])
@pytest.mark.parametrize("length", [1, 130, 150])
def test_a_gpu_computes_the_same_attention_by_the_library(length: int, window: int | None) -> None:
    """The last `length` of 150 positions, on the CPU here: over several blocks, with and without a window."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sides = [
            torch.randn(2, heads, size, 8, requires_grad=True)
            for heads, size in ((6, length), (2, 150), (2, 150))
        ]
        weights = torch.randn(2, length, 6, 8)
    module = cast(Module, SimpleNamespace(num_key_value_groups=3, is_causal=True))
    seen = []
    for attend in (attend_on_cpu, partial(attend_by_library, module)):
        out = attend(*sides, scaling=0.3, sliding_window=window)
        seen.append([out, *torch.autograd.grad((out * weights).sum(), sides)])
    for ours, theirs in zip(*seen, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_training_leaves_the_attention_of_cudnn_out(tmp_path: Path) -> None:
    made(LlamaConfig(**SIZES)).save_pretrained(tmp_path)
    torch.backends.cuda.enable_cudnn_sdp(True)
    load_base(ModelSection(name=str(tmp_path), device="cpu", dtype="float32"))
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_rows_of_similar_length_are_padded_together_and_back() -> None:
    near, far = group_by_length([1, 1, 31, 32, 33], torch.device("cpu"))[:2]
    assert (near.lengths, far.lengths) == ((1, 1, 31, 32), (33,)) and far.tokens is None
    (group,) = group_by_length([2, 3], torch.device("cpu"))
    x = torch.arange(1.0, 6)[:, None, None]
    padded = group.pad(x)
    assert padded.shape == (2, 1, 3, 1)
    assert padded[0, 0, :2, 0].tolist() == [1, 2] and padded[1, 0, :, 0].tolist() == [3, 4, 5]
    assert torch.equal(group.unpad(padded.transpose(1, 2)), x)


def test_micro_batches_keep_roles_together_and_share_out_the_tokens() -> None:
    lengths = {"critic": (7, 8, 9, 10), "policy": (5, 6)}
    rows = [
        Encoded(f"{role}/{n}", role, (0,) * (n - 1), (0,), (), None, 1.0, ())  # type: ignore[arg-type]
        for role, of_role in lengths.items()
        for n in of_role
    ]
    parts = [[row.row_id for row in part] for part in micro_batches(rows, 3)]
    assert parts == [
        ["critic/10", "critic/8", "critic/7"],
        ["critic/9", "policy/6", "policy/5"],
    ]  # 25 and 20 tokens


def test_a_model_that_reads_no_packed_rows_is_not_sharded(tmp_path: Path) -> None:
    made(MambaConfig(**MAMBA)).save_pretrained(tmp_path)
    section = ModelSection(name=str(tmp_path), device="cpu", dtype="float32", train="full")
    with pytest.raises(TrainingError, match=r"set trainer\.shard to none"):
        make_trainable(section, None, 0, TrainerSection(processes=2, shard="fsdp"))
