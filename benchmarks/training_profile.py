"""Where the time of a training step goes: `python -m benchmarks.training_profile`, by torch's profiler.

One micro-batch of LoRA training on one core, forth and back, after two to warm up. Products are what the share of the
limit in `benchmarks.training` is taken of; all else is what eats the rest.
"""

from collections import Counter

import torch
import typer
from peft.helpers import disable_input_dtype_casting
from torch.profiler import ProfilerActivity, profile

from benchmarks.checks import OUT, print_figures, write_checks
from benchmarks.training_chats import make_chats
from schemas.config import ModelSection
from tasks.engines.chat import load_chat_tokenizer
from tasks.engines.models import resolve_model
from tasks.training.data import encode
from tasks.training.loss import token_losses
from tasks.training.tuned import make_tuned

KINDS = {
    "products of linear layers, adapters and head": ("aten::mm", "aten::addmm", "aten::addmm_"),
    "products of attention": ("aten::bmm", "aten::baddbmm", "aten::baddbmm_", "aten::_scaled_dot_product"),
    "softmax, over keys and over the vocabulary": ("aten::_softmax", "aten::_log_softmax", "aten::log_softmax"),
    "copies and casts": ("aten::copy_", "aten::cat", "aten::index", "aten::_to_copy", "aten::clone"),
    "activation of the MLP": ("aten::silu", "aten::silu_backward"),
    "other element-wise operations and sums": (
        "aten::mul", "aten::add", "aten::sub", "aten::div", "aten::neg", "aten::pow", "aten::mean", "aten::rsqrt",
        "aten::sum", "aten::fill_", "aten::triu", "aten::zero_",
    ),
}  # fmt: skip
REST = "everything else, Python's part included"


def main(model: str = ModelSection().name, rows: int = 4, threads: int = 1) -> None:
    """Print and write the shares."""
    torch.set_num_threads(threads)
    section = ModelSection(name=model, device="cpu")
    tokenizer = load_chat_tokenizer(resolve_model(section))
    batch = [encode(row, tokenizer, section.context_length) for row in make_chats(rows, tokenizer)]
    tuned = make_tuned(section, None, seed=0)

    def step() -> None:
        token_losses(tuned.model, batch, tuned.dtype).mean().backward()

    with disable_input_dtype_casting(tuned.model):
        step()
        step()
        with profile(activities=[ProfilerActivity.CPU]) as recorded:
            step()
    spent: Counter[str] = Counter(dict.fromkeys([*KINDS, REST], 0))
    for event in recorded.key_averages():
        kind = next((k for k, names in KINDS.items() if event.key.startswith(names)), REST)
        spent[kind] += event.self_cpu_time_total
    total = sum(spent.values())
    shares = {kind: value / total for kind, value in spent.items()}
    tokens = sum(row.tokens for row in batch)
    print_figures(f"{tokens} tokens in {total / 1e6:.2f} s", {"share of the time": shares})
    OUT.mkdir(exist_ok=True)
    write_checks("training_profile", [], shares=shares, tokens_per_second=tokens / total * 1e6)


if __name__ == "__main__":
    typer.run(main)
