"""What matrix products alone allow: their seconds a token at a model's shapes, in the forward and the backward pass.

For each linear layer, LoRA training needs the product of the forward pass and the one that takes gradients to the
layer's input; the same for the head over label tokens. The adapter's own products, 7% more, count as overhead. In
float32 oneDNN computes them, which is faster than torch's own choice.
"""

import time
from collections.abc import Callable
from statistics import median

import torch
from transformers import AutoConfig

from tasks.engines.products import product

REPEATS = 7


def seconds_a_token(model: str, tokens: int, label_share: float, dtype: torch.dtype, device: str) -> float:
    """Seconds of matrix products that a token of LoRA training costs.

    Args:
        model: folder or hub name; its configuration gives the shapes.
        tokens: computed at once.
        label_share: share of them that have a loss.
        dtype: of the products.
        device: where.
    """
    config = AutoConfig.from_pretrained(model)
    width, inner = config.hidden_size, config.intermediate_size
    heads = config.num_attention_heads * (
        head := getattr(config, "head_dim", width // config.num_attention_heads)
    )
    groups = config.num_key_value_heads * head
    shapes = [
        (width, heads),
        (width, groups),
        (width, groups),
        (heads, width),
        (width, inner),
        (width, inner),
    ]
    layer = sum(_seconds(tokens, *shape, dtype, device) for shape in [*shapes, (inner, width)])
    labels = max(1, round(tokens * label_share))
    return (
        config.num_hidden_layers * layer + _seconds(labels, width, config.vocab_size, dtype, device)
    ) / tokens


def _seconds(rows: int, narrow: int, wide: int, dtype: torch.dtype, device: str) -> float:
    x, weight = torch.randn(rows, narrow).to(device, dtype), torch.randn(wide, narrow).to(device, dtype)
    grad = torch.randn(rows, wide).to(device, dtype)
    return _timed(lambda: product(x, weight), device) + _timed(lambda: product(grad, weight.T), device)


def _timed(compute: Callable[[], torch.Tensor], device: str) -> float:
    """Median seconds of a computation after two to warm up; on a GPU of ten at once."""
    many = 10 if device == "cuda" else 1
    taken = []
    for _ in range(REPEATS + 2):
        _wait(device)
        begin = time.perf_counter()
        for _ in range(many):
            compute()
        _wait(device)
        taken.append((time.perf_counter() - begin) / many)
    return median(taken[2:])


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
