"""What a GPU alone can show: `python -m benchmarks.gpu`. Without one it says so, and ends with 0.

Models of random weights, of the default one's shape and of a larger one, train with LoRA on packed rows and answer, in
bfloat16. The figures are the share of the GPU's matrix peak in training, bytes of activations per trained token, and
tokens per second of the transformers backend.
"""

import asyncio
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import torch
import typer

from benchmarks.checks import check, finish, print_figures
from benchmarks.training.chats import make_chats
from schemas.config import EngineSection, ModelSection, TrainingSection
from tasks.chat.messages import Message
from tasks.chat.tokenizers import load_chat_tokenizer
from tasks.datasets.example import Example
from tasks.engines.backends import build_engine
from tasks.engines.models import resolve_model
from tasks.engines.protocol import Request, Sampling
from tasks.training.data import encode
from tasks.training.job import Rows, TrainingJob

SHARE = 0.45
SIDE = 8192  # of the square product that the peak is measured with
SHAPES: dict[str, dict[str, int]] = {
    "default": {},
    "larger": {  # that of SmolLM2-1.7B
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24,
        "num_attention_heads": 32, "num_key_value_heads": 32,
    },
}  # fmt: skip
"""Shape -> what differs from the configuration of the default model."""


def write_random(shape: Path | str, folder: Path, differing: Mapping[str, int] | None = None) -> None:
    """A checkpoint of random weights with the shape of another, but for what differs, and its tokenizer."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(shape, **(differing or {}))
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(shape).save_pretrained(folder)


def weights_of(folder: Path) -> tuple[int, int]:
    """Parameters in the products of the layers, and of the head."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    head = model.get_output_embeddings()
    linear = (m for m in model.modules() if isinstance(m, torch.nn.Linear) and m is not head)
    return sum(m.weight.numel() for m in linear), head.weight.numel()


def peak_flops() -> float:
    """Floating-point operations a second of a large bfloat16 product."""
    a, b = torch.randn(2, SIDE, SIDE, device="cuda", dtype=torch.bfloat16)
    best = float("inf")
    for _ in range(20):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        a @ b
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - begin)
    return 2 * SIDE**3 / best


def train_once(
    model: ModelSection, rows: list[Example], batch_rows: int, micro_rows: int
) -> dict[str, float]:
    """Tokens a second after the second step, and the most bytes held beside what stays between steps."""
    from tasks.training.trainer import train

    torch.cuda.reset_peak_memory_stats()
    ends: list[float] = []
    held: list[int] = []

    def step_done(*_: object) -> None:
        torch.cuda.synchronize()
        ends.append(time.perf_counter())
        held.append(torch.cuda.memory_allocated())

    with tempfile.TemporaryDirectory() as folder:
        job = TrainingJob(
            model=model,
            section=TrainingSection(batch_rows=batch_rows, micro_batch_rows=micro_rows),
            rows=Rows(rows),
            seed=0,
            out=Path(folder),
        )
        result = train(job, step_done)
    tokens = sum(step.tokens for step in result.steps[2:])
    peak = torch.cuda.max_memory_allocated()
    return {
        "tokens_per_second": tokens / (ends[-1] - ends[1]),
        "peak_gib": peak / 2**30,
        "bytes": peak - min(held),
    }


async def generated_per_second(model: ModelSection, at_once: int, tokens: int) -> float:
    """Tokens a second of the transformers backend with `at_once` requests of up to `tokens` tokens, after a first
    such wave."""
    engine = build_engine(EngineSection(max_batch=at_once), model, Path(model.name))
    requests = [
        Request(
            (Message(role="user", content=f"Tell me all about {n}."),), Sampling(max_tokens=tokens, seed=n)
        )
        for n in range(at_once)
    ]
    try:
        await asyncio.gather(*map(engine.generate, requests))
        begin = time.perf_counter()
        answers = await asyncio.gather(*map(engine.generate, requests))
        return sum(answer.completion_tokens for answer in answers) / (time.perf_counter() - begin)
    finally:
        await engine.close()


def measured(section: ModelSection, chats: int, batch_rows: int, micro_rows: int) -> dict[str, float]:
    """Figures of training a model of random weights."""
    tokenizer = load_chat_tokenizer(section.name)
    rows = make_chats(chats, tokenizer)
    encoded = [encode(row, tokenizer, section.context_length) for row in rows]
    read = sum(row.tokens for row in encoded)
    label_share = sum(len(row.label_ids) for row in encoded) / read
    layers, head = weights_of(Path(section.name))
    figures = train_once(section, rows, batch_rows, micro_rows)
    figures["micro_batch_tokens"] = micro_rows * read / chats
    figures["bytes_per_token"] = figures.pop("bytes") / figures["micro_batch_tokens"]
    # Forward, and backward to the inputs. Frozen weights have no gradients; the adapter's products are left out.
    figures["flops"] = figures["tokens_per_second"] * 4 * (layers + label_share * head)
    return figures


def main(
    model: str = ModelSection().name,
    chats: int = 512,
    batch_rows: int = 64,
    micro_rows: int = 32,
    requests: int = 64,
    tokens: int = 128,
) -> None:
    """Measure; ends with 1 where a goal is missed."""
    if not torch.cuda.is_available():
        print("benchmarks.gpu: torch finds no CUDA GPU on this machine, so there is nothing to measure")
        return
    figures: dict[str, dict[str, float]] = {}
    peak = peak_flops()
    for shape, differing in SHAPES.items():
        with tempfile.TemporaryDirectory() as name:
            write_random(resolve_model(model), Path(name), differing)
            section = ModelSection(name=name, dtype="bfloat16", device="cuda")
            figures[shape] = measured(section, chats, batch_rows, micro_rows)
            figures[shape]["share_of_peak"] = figures[shape].pop("flops") / peak
            figures[shape]["generated_per_second"] = asyncio.run(
                generated_per_second(section, requests, tokens)
            )
    checks = [
        check("gpu_training_share_of_peak", figures["default"]["share_of_peak"], ">=", SHARE),
        check("gpu_training_share_of_peak_larger", figures["larger"]["share_of_peak"], ">=", SHARE),
    ]
    device = torch.cuda.get_device_name()
    print_figures(f"LoRA training, and generation of {requests} texts at once, on a {device}", figures)
    print(f"matrix peak {peak / 1e12:.0f} TFLOP/s")
    finish("gpu", "Training on a GPU", checks, shapes=figures, gpu=device, peak_flops=peak)


if __name__ == "__main__":
    typer.run(main)
