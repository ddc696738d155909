"""What a GPU alone can show: `python -m benchmarks.gpu`. Without one it says so, and ends with 0.

A model of random weights, of the shape of the default one, trains with LoRA on packed rows and answers in bfloat16. The
figures are the share of the GPU's matrix peak in training, bytes of activations per trained token, and tokens per
second of the transformers backend. Training runs with each attention kernel that the GPU has, and the fastest counts.
"""

import asyncio
import tempfile
import time
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
KERNELS = {
    "flash": torch.nn.attention.SDPBackend.FLASH_ATTENTION,
    "efficient": torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION,
    "math": torch.nn.attention.SDPBackend.MATH,
}


def write_random(shape: Path | str, folder: Path) -> None:
    """A checkpoint of random weights with the shape and the tokenizer of another."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(shape)
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


async def generated_per_second(model: ModelSection, at_once: int, tokens: int) -> float:
    """Tokens a second of the transformers backend with `at_once` requests of up to `tokens` tokens, after a first
    such wave."""
    engine = build_engine(EngineSection(max_batch=at_once), model, None)
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


def main(
    model: str = ModelSection().name,
    chats: int = 512,
    batch_rows: int = 64,
    micro_rows: int = 16,
    requests: int = 64,
    tokens: int = 128,
) -> None:
    """Measure; ends with 1 where a goal is missed."""
    if not torch.cuda.is_available():
        print("benchmarks.gpu: torch finds no CUDA GPU on this machine, so there is nothing to measure")
        return
    with tempfile.TemporaryDirectory() as name:
        write_random(resolve_model(model), Path(name))
        section = ModelSection(name=name, dtype="bfloat16", device="cuda")
        tokenizer = load_chat_tokenizer(name)
        rows = make_chats(chats, tokenizer)
        encoded = [encode(row, tokenizer, section.context_length) for row in rows]
        read = sum(row.tokens for row in encoded)
        label_share = sum(len(row.label_ids) for row in encoded) / read
        layers, head = weights_of(Path(name))
        # Forward, and backward to the inputs. Frozen weights have no gradients; the adapter's products are left out.
        flops_per_token = 4 * (layers + label_share * head)
        figures = by_kernel(section, rows, batch_rows, micro_rows)
        if not figures:
            raise SystemExit("benchmarks.gpu: no attention kernel trained; see what is printed above")
        generated = asyncio.run(generated_per_second(section, requests, tokens))
    for values in figures.values():
        values["bytes_per_token"] = values.pop("bytes") / (micro_rows * read / chats)
    speed = max(values["tokens_per_second"] for values in figures.values())
    peak = peak_flops()
    checks = [check("gpu_training_share_of_peak", speed * flops_per_token / peak, ">=", SHARE)]
    device = torch.cuda.get_device_name()
    print_figures(f"LoRA training on a {device} by attention kernel", figures)
    print(
        f"matrix peak {peak / 1e12:.0f} TFLOP/s; {generated:.0f} tokens a second generated, {requests} at once"
    )
    finish(
        "gpu", "Training on a GPU", checks,
        kernels=figures, gpu=device, peak_flops=peak, generated_per_second=generated,
    )  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
