"""What a GPU alone can show: `python -m benchmarks.training.gpu`. Without one it says so, and ends with 0.

LoRA training of the small model in bf16, as a share of what its matrix products alone allow on this GPU. The fastest of
the attention kernels that the GPU has counts; speed and memory are printed for each.
"""

import tempfile
import time
from pathlib import Path

import torch
import typer

from benchmarks.checks import check, finish, print_figures
from benchmarks.training.chats import make_chats
from benchmarks.training.matrix_products import seconds_a_token
from schemas.config import ModelSection, TrainingSection
from tasks.chat.tokenizers import load_chat_tokenizer
from tasks.datasets.example import Example
from tasks.engines.models import resolve_model
from tasks.training.data import encode
from tasks.training.job import Rows, TrainingJob

# Of a model of 135M parameters, whose products are small for a GPU.
SHARE = 0.2
KERNELS = {
    "flash": torch.nn.attention.SDPBackend.FLASH_ATTENTION,
    "efficient": torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION,
    "math": torch.nn.attention.SDPBackend.MATH,
}


def train_once(
    model: ModelSection, rows: list[Example], batch_rows: int, micro_rows: int
) -> dict[str, float]:
    """Tokens a second after the second step, and the most memory held."""
    from tasks.training.trainer import train

    torch.cuda.reset_peak_memory_stats()
    ends: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        job = TrainingJob(
            model=model,
            section=TrainingSection(batch_rows=batch_rows, micro_batch_rows=micro_rows),
            rows=Rows(rows),
            seed=0,
            out=Path(folder),
        )
        result = train(job, lambda *_: ends.append(time.perf_counter()))
    tokens = sum(step.tokens for step in result.steps[2:])
    return {
        "tokens_per_second": tokens / (ends[-1] - ends[1]),
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
    }


def by_kernel(
    model: ModelSection, rows: list[Example], batch_rows: int, micro_rows: int
) -> dict[str, dict[str, float]]:
    """Figures of each attention kernel that the GPU has, alone: none falls back on another."""
    figures = {}
    for name, kernel in KERNELS.items():
        try:
            with torch.nn.attention.sdpa_kernel([kernel]):
                figures[name] = train_once(model, rows, batch_rows, micro_rows)
        except RuntimeError as error:
            print(f"{name}: not measured: {str(error).splitlines()[0]}")
    return figures


def main(
    model: str = ModelSection().name, chats: int = 512, batch_rows: int = 64, micro_rows: int = 16
) -> None:
    """Measure; ends with 1 where a goal is missed."""
    if not torch.cuda.is_available():
        print(
            "benchmarks.training.gpu: torch finds no CUDA GPU on this machine, so there is nothing to measure"
        )
        return
    section = ModelSection(name=model, dtype="bfloat16", device="cuda")
    path = str(resolve_model(section))
    tokenizer = load_chat_tokenizer(path)
    rows = make_chats(chats, tokenizer)
    encoded = [encode(row, tokenizer, section.context_length) for row in rows]
    tokens = sum(row.tokens for row in encoded)
    share = sum(len(row.label_ids) for row in encoded) / tokens
    limit = 1 / seconds_a_token(path, micro_rows * tokens // chats, share, torch.bfloat16, "cuda")
    figures = by_kernel(section, rows, batch_rows, micro_rows)
    speed = max(values["tokens_per_second"] for values in figures.values())
    checks = [check("gpu_training_share_of_limit", speed / limit, ">=", SHARE)]
    name = torch.cuda.get_device_name()
    print_figures(f"training on a {name} by attention kernel", figures)
    print(f"matrix products alone would allow {limit:.0f} tokens a second")
    finish("gpu", "Training on a GPU", checks, kernels=figures, gpu=name, limit=limit)


if __name__ == "__main__":
    typer.run(main)
