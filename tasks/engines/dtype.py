"""Settles `model.dtype: auto`: the type of weights that this machine computes fastest with.

On a GPU that is bfloat16 where the GPU has it. On a CPU a probe times a few products of the model's shapes in both
types. The probe runs in a process of its own, with the threads that the stages have, so that the caller imports no
torch. Its result is kept in the model cache (<cache>/dtype/), by model, processor, threads and version of torch.

`tasks.pipeline.iterations.settle` asks once a run. Everything below it sees float32 or bfloat16.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from schemas.config import ModelSection
from schemas.load import python_path
from storage.files import replace_text
from tasks.engines.models import ModelError, check_model, model_cache, model_digest, resolve_model

Dtype = Literal["float32", "bfloat16"]

PROBE = "3"  # raised when the probe measures something else
PROBE_SECONDS = 0.5
TRAINED, GENERATED = 128, 8  # tokens computed at once, in training and in generation
PRODUCT = 1 << 28  # floating-point operations of a product in training, at most

# What speeds depend on beside the processor: threads, and limits on instructions.
VARIABLES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA",
    "MKL_ENABLE_INSTRUCTIONS", "FBGEMM_ENABLE_INSTRUCTIONS",
)  # fmt: skip
GPU_FILES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")  # CUDA, CUDA under WSL, ROCm


class Choice(BaseModel):
    """A type of weights, and why."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dtype: Dtype
    reason: str


def choose_dtype(model: ModelSection, cache_dir: Path | None = None) -> Choice:
    """The type of a model's weights: the configured one, or for `auto` the best one on this machine.

    Args:
        model: name, revision, dtype and device.
        cache_dir: model cache, instead of the default one.

    Raises:
        ModelError: the model can't be found, or the probe failed.
    """
    if model.dtype != "auto":
        return Choice(dtype=model.dtype, reason="as configured")
    check_model(model)
    if model.device != "cpu" and any(Path(file).exists() for file in GPU_FILES):
        return _probe_apart(model)  # only torch knows whether it can use the GPU
    known = model_cache(cache_dir) / "dtype" / f"{_key(model)}.json"
    with suppress(OSError, ValidationError):
        return Choice.model_validate_json(known.read_text(encoding="utf-8"))
    choice = _probe_apart(model)
    with suppress(OSError):  # without a cache, every run probes
        replace_text(known, choice.model_dump_json())
    return choice


def on_gpu(name: str, has_bfloat16: bool) -> Choice:
    """The type on a GPU: bfloat16 where it computes with that itself."""
    if has_bfloat16:
        return Choice(dtype="bfloat16", reason=f"{name} computes with it")
    return Choice(dtype="float32", reason=f"{name} has no bfloat16 of its own")


def faster(seconds: Mapping[Dtype, float], where: str) -> Choice:
    """The faster type, or bfloat16, which takes half the memory, where both are as fast.

    Args:
        seconds: that the same products take in each type.
        where: what was measured, for the reason.
    """
    first: Dtype = "bfloat16" if seconds["bfloat16"] <= seconds["float32"] else "float32"
    second: Dtype = "float32" if first == "bfloat16" else "bfloat16"
    ratio = seconds[second] / seconds[first]
    return Choice(dtype=first, reason=f"{ratio:.1f} times as fast as {second} {where}")


def probe(model: ModelSection) -> Choice:
    """Measure in this process, at the shapes in the model's config.json. Loads torch, but no weights.

    Raises:
        ModelError: the model can't be found.
    """
    import torch
    from transformers import AutoConfig

    if model.device != "cpu" and torch.cuda.is_available():
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        return on_gpu(torch.cuda.get_device_name(), native)
    shapes = AutoConfig.from_pretrained(str(resolve_model(model)), revision=model.revision).get_text_config()
    width = shapes.hidden_size
    inner = getattr(shapes, "intermediate_size", None) or 4 * width  # GPT-2 leaves it out
    threads = torch.get_num_threads()
    cores = f"{threads} thread{'s' * (threads > 1)} of {_processor()['name']}"
    with torch.inference_mode():
        return faster(_seconds(width, inner), f"in products at {width} x {inner} with {cores}")


def _seconds(width: int, inner: int) -> dict[Dtype, float]:
    """Seconds a token in each type: an MLP's products forward and backward as in training, forward as in generation,
    as the program computes them (`tasks.engines.products`).

    They take turns, and the best time of each counts, because other processes disturb some of them.
    """
    import torch

    from tasks.engines.products import packed, product

    rows = max(GENERATED, min(TRAINED, PRODUCT // (2 * width * inner)))

    def products(dtype: torch.dtype) -> list[tuple[int, Callable[[], object]]]:
        up, down = torch.ones(inner, width, dtype=dtype), torch.ones(width, inner, dtype=dtype)
        many, few = torch.ones(rows, width, dtype=dtype), torch.ones(GENERATED, width, dtype=dtype)
        packed_up, packed_down = packed(up, None), packed(down, None)

        def generate() -> object:
            if packed_up is None or packed_down is None:
                return product(product(few, up), down)
            return packed_down(packed_up(few))

        return [
            (rows, lambda: product(product(many, up), down)),
            (rows, lambda: product(product(many, down.T), up.T)),
            (GENERATED, generate),
        ]

    types: tuple[Dtype, ...] = ("bfloat16", "float32")
    timed = {dtype: products(getattr(torch, dtype)) for dtype in types}
    best: dict[tuple[Dtype, int], float] = {}
    rounds, started = 0, time.perf_counter()
    while rounds < 3 or time.perf_counter() - started < PROBE_SECONDS:
        for dtype, works in timed.items():
            for number, (tokens, work) in enumerate(works):
                before = time.perf_counter()
                work()
                taken = (time.perf_counter() - before) / tokens
                if rounds:  # the first one prepares the kernels
                    best[dtype, number] = min(taken, best.get((dtype, number), taken))
        rounds += 1
    return {dtype: sum(best[dtype, number] for number in range(len(timed[dtype]))) for dtype in types}


def _probe_apart(model: ModelSection) -> Choice:
    """`probe` in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tasks.engines.dtype", model.model_dump_json()],
        env={**os.environ, "PYTHONPATH": python_path()},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        _, told, reason = said.partition(f"{ModelError.__name__}: ")
        if told:  # the model itself is at fault
            raise ModelError(reason)
        raise ModelError(
            f"model.dtype: auto can't be settled for {model.name} ({said}); set it to float32 or bfloat16"
        )
    return Choice.model_validate_json(done.stdout.strip().splitlines()[-1])


def _key(model: ModelSection) -> str:
    """What a measurement holds for."""
    facts = {
        "probe": PROBE,
        "model": model_digest(model),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "variables": {name: os.environ.get(name) for name in VARIABLES},
        "torch": metadata.version("torch"),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _processor() -> dict[str, str]:
    """Name and instruction sets of the processor."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    said = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    name = said.get("model name") or platform.processor() or platform.machine()
    return {"name": name, "flags": said.get("flags") or said.get("Features", "")}


if __name__ == "__main__":
    sys.stdout.write(probe(ModelSection.model_validate_json(sys.argv[1])).model_dump_json())
