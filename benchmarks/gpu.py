"""What a GPU alone can show: `python -m benchmarks.gpu`. Without one it says so, and ends with 0.

With the small model: LoRA training in bf16 as a share of what its matrix products alone allow on this very GPU, by
attention kernel, where the GPU has it; memory that a further token of a micro-batch takes; the transformers backend's
tokens a second.
"""

import asyncio
import tempfile
import time
from pathlib import Path

import torch
import typer

from benchmarks.checks import check, print_checks, print_figures, write_checks
from benchmarks.training_chats import make_chats
from benchmarks.training_peak import flops_a_token, seconds_a_token
from schemas.config import EngineSection, ModelSection, TrainingSection
from tasks.engines import build_engine
from tasks.engines.base import Message, Request, Sampling
from tasks.engines.chat import load_chat_tokenizer
from tasks.engines.models import resolve_model
from tasks.training.data import Example, encode

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
    """Tokens a second after the second step, mean tokens of a micro-batch, and the most memory held."""
    from tasks.training.trainer import train

    torch.cuda.reset_peak_memory_stats()
    ends: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        result = train(
            model=model,
            section=TrainingSection(batch_rows=batch_rows, micro_batch_rows=micro_rows),
            start=None, target=None, optimizer=None, tau=None, mix=0.0, main=rows, other=[], seed=0,
            out=Path(folder), on_step=lambda *_: ends.append(time.perf_counter()),
        )  # fmt: skip
    tokens = sum(step.tokens for step in result.steps[2:])
    average = sum(step.tokens for step in result.steps) / sum(step.rows for step in result.steps)
    return {
        "tokens_per_second": tokens / (ends[-1] - ends[1]),
        "micro_batch_tokens": average * micro_rows,
        "peak_kib": torch.cuda.max_memory_allocated() / 1024,
    }


def by_kernel(
    model: ModelSection, rows: list[Example], batch_rows: int, micro_rows: int
) -> dict[str, dict[str, float]]:
    """Figures of each attention kernel that the GPU has, alone: none falls back on another."""
    figures = {}
    for name, kernel in KERNELS.items():
        try:
            with torch.nn.attention.sdpa_kernel([kernel]):
                whole = train_once(model, rows, batch_rows, micro_rows)
                half = train_once(model, rows, batch_rows, micro_rows // 2)
        except RuntimeError as error:
            print(f"{name}: not measured: {str(error).splitlines()[0]}")
            continue
        further = whole["micro_batch_tokens"] - half["micro_batch_tokens"]
        figures[name] = {
            "tokens_per_second": whole["tokens_per_second"],
            "kib_per_further_token": (whole["peak_kib"] - half["peak_kib"]) / further,
            "peak_gib": whole["peak_kib"] / 2**20,
        }
    return figures


async def generate(model: ModelSection, requests: int, max_tokens: int, cache: Path) -> float:
    """Tokens a second of the transformers backend."""
    engine = build_engine(EngineSection(max_batch=requests), model, cache)
    prompts = [
        (Message(role="user", content=f"Tell me a story about the number {n}."),) for n in range(requests)
    ]

    async def all_at_once() -> int:
        asked = (
            engine.generate(Request(prompt, Sampling(max_tokens=max_tokens, seed=seed)))
            for seed, prompt in enumerate(prompts)
        )
        return sum(answer.completion_tokens for answer in await asyncio.gather(*asked))

    try:
        await all_at_once()
        begin = time.perf_counter()
        return await all_at_once() / (time.perf_counter() - begin)
    finally:
        await engine.close()


def main(
    model: str = ModelSection().name, chats: int = 512, batch_rows: int = 64, micro_rows: int = 16
) -> None:
    """Measure; ends with 1 where a goal is missed."""
    if not torch.cuda.is_available():
        print("benchmarks.gpu: torch finds no CUDA GPU on this machine, so there is nothing to measure")
        return
    section = ModelSection(name=model, device="cuda")
    path = str(resolve_model(section))
    tokenizer = load_chat_tokenizer(path)
    rows = make_chats(chats, tokenizer)
    encoded = [encode(row, tokenizer, section.context_length) for row in rows]
    tokens = sum(row.tokens for row in encoded)
    share = sum(len(row.label_ids) for row in encoded) / tokens
    limit = 1 / seconds_a_token(path, micro_rows * tokens // chats, share, torch.bfloat16, "cuda")
    figures = by_kernel(section, rows, batch_rows, micro_rows)
    speed = max(values["tokens_per_second"] for values in figures.values())
    with tempfile.TemporaryDirectory() as cache:
        generated = asyncio.run(generate(section, 64, 128, Path(cache)))
    checks = [check("gpu_training_share_of_limit", speed / limit, ">=", SHARE)]
    more = {
        "gpu": torch.cuda.get_device_name(),
        "limit_tokens_per_second": limit,
        "limit_tflops": limit * flops_a_token(path, share) / 1e12,
        "transformers_tokens_per_second": generated,
    }
    print_figures("training by attention kernel", figures)
    print(more)
    print_checks("On a GPU", checks)
    write_checks("gpu", checks, kernels=figures, **more)
    if not all(c.ok for c in checks):
        raise SystemExit(1)


if __name__ == "__main__":
    typer.run(main)
