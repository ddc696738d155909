"""What the transformers backend's cache of slots gives: a token of every row in it, and in transformers' dynamic cache.

    python -m benchmarks.slots [--rows 16,64] [--dtypes bfloat16,float32] [--context 300]

Of rows behind `--context` tokens, medians of `--repeats` in turn, milliseconds: one token of every row in the slots and
in the dynamic cache, and reading 32 further tokens of four rows, as when episodes go on. Figures without a bar.
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Annotated

import torch
import typer
from transformers import DynamicCache, PreTrainedModel

from benchmarks.checks import print_figures, write_checks
from schemas.config import ModelSection
from tasks.engines.adapters import load_model
from tasks.engines.attention import register
from tasks.engines.models import resolve_model
from tasks.engines.slots import SlotCache

READ = (4, 32)  # rows, tokens


@torch.inference_mode()
def measure(model: PreTrainedModel, rows: int, context: int, repeats: int) -> dict[str, float]:
    """Milliseconds of each way."""
    slots, dynamic = SlotCache(model, rows), DynamicCache(config=model.config)

    def some(*shape: int) -> torch.Tensor:
        return torch.randint(0, model.config.vocab_size, shape)

    begun = some(rows, context)
    slots.read(model, range(rows), [0] * rows, begun)
    model(input_ids=begun, past_key_values=dynamic, use_cache=True, logits_to_keep=1)
    ways: dict[str, Callable[[], object]] = {
        "a token of each, slots": lambda: slots.write(model, [context] * rows, some(rows, 1)),
        "a token of each, dynamic cache": lambda: model(
            input_ids=some(rows, 1), past_key_values=dynamic, use_cache=True
        ),
        "32 tokens of four, slots": lambda: slots.read(
            model, range(rows - READ[0], rows), [context] * READ[0], some(*READ)
        ),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - start)
    return {name: 1000 * median(taken[1:]) for name, taken in seconds.items()}  # the first warms up


def main(
    rows: Annotated[str, typer.Option(help="rows at once, four or more")] = "16,64",
    dtypes: Annotated[str, typer.Option(help="types of the weights")] = "bfloat16,float32",
    context: Annotated[int, typer.Option(min=1, help="tokens before")] = 300,
    repeats: Annotated[int, typer.Option(min=1, help="of each way")] = 10,
) -> None:
    """Print the table, write benchmarks/out/slots.json."""
    counts = [int(count) for count in rows.split(",")]
    if min(counts) < READ[0]:
        raise typer.BadParameter(f"--rows {rows}: {READ[0]} or more are needed, of which so many read on")
    path = resolve_model(ModelSection())
    figures: dict[str, dict[str, float]] = {}
    for dtype in dtypes.split(","):
        model = load_model(path, None, getattr(torch, dtype), "cpu", register())
        for count in counts:
            figures[f"{dtype}, {count} rows"] = measure(model, count, context, repeats)
    print_figures(f"behind {context} tokens, ms", figures)
    write_checks("slots", [], figures=figures)


if __name__ == "__main__":
    typer.run(main)
