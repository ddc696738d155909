"""LoRA training beside TRL's SFTTrainer: speed, memory, loss curve, and the share of what matrix products allow.

    python -m benchmarks.training.versus_trl            settings, then compare
    python -m benchmarks.training.versus_trl settings   find TRL's best settings, each tried on a few steps
    python -m benchmarks.training.versus_trl compare    both sides in turn, each in a process of its own. It takes the
                                                        settings found before for this model, TRL and number of cores

Both sides have the same model, chats (`benchmarks.training.chats`), token ids, batches, adapter to start from, learning
rate and steps. The loss is on completions only, and all cores are used. TRL gets the rows of a batch sorted by length,
as ours are. The first step of each run does not count. Needs TRL: pip install -c constraints.txt -e '.[benchmarks]'.

Ours has weights of `--dtype`; `auto` takes what a run on this processor would. Checks in float32 have names and goals
of their own. TRL's best settings are found for each: for bfloat16 among both types; for float32, which is for
processors where bfloat16 is slow, in float32 alone.
"""

import json
import os
import tempfile
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, median
from typing import Any, Literal

import typer

from benchmarks.checks import OUT, check, finish, machine, print_figures
from benchmarks.processes import run_module
from benchmarks.training.matrix_products import seconds_a_token
from schemas.config import FineTuningSection, ModelSection
from tasks.engines.dtype import choose_dtype
from tasks.engines.models import resolve_model

SETTINGS = OUT / "training_settings.json"  # of the type compared last
FIRST = {
    "packing": False, "micro_batch": 4, "attention": "sdpa", "weights": "bfloat16", "autocast": True,
    "gradient_checkpointing": False,
}  # fmt: skip
# Each differs from FIRST in one thing; weights and autocast together are the dtype.
TRIED: list[dict[str, Any]] = [
    {}, {"packing": True}, {"micro_batch": 1}, {"micro_batch": 2}, {"micro_batch": 8}, {"attention": "eager"},
    {"autocast": False}, {"weights": "float32"}, {"weights": "float32", "autocast": False},
    {"gradient_checkpointing": True},
]  # fmt: skip
IN_FLOAT32 = {"weights": "float32", "autocast": False}
RATE = 5e-4
Dtype = Literal["float32", "bfloat16"]
Result = dict[str, Any]

# Of `training_speed_vs_trl`. Where bfloat16 is fast, TRL gains little by it; in float32 both compute the same products.
SPEED: dict[Dtype, float] = {"bfloat16": 4.0, "float32": 2.0}


def run_side(side: str, folder: Path, **changes: Any) -> Result:
    """One side in a process of its own, which ends before the next begins."""
    job = {
        **FIRST, "side": side, "adapter": str(folder / "start"), "rate": RATE, "threads": os.cpu_count(), **changes,
    }  # fmt: skip
    files = folder / "job.json", folder / "result.json"
    files[0].write_text(json.dumps(job))
    threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(job["threads"]))}
    run_module("benchmarks.training.sides", *files, log=folder / "log", environment=threads)
    result: Result = json.loads(files[1].read_text())
    # With packs, the rows of a step are others, and there are about as many tokens.
    tokens = sum(result["tokens"]) * len(result["seconds"]) / (len(result["seconds"]) + 1)
    result["speed"] = tokens / sum(result["seconds"])
    return result


def write_start(model: str, folder: Path) -> None:
    """The adapter that both sides start from."""
    from tasks.training.lora import adapter_tensors, fresh_adapter, save_adapter
    from tasks.training.model import load_base

    section = ModelSection(name=model, dtype="bfloat16", device="cpu")
    adapted = fresh_adapter(load_base(section), section, seed=0)
    save_adapter(adapted, adapter_tensors(adapted), folder / "start", model)


def identity(model: str, dtype: Dtype) -> dict[str, Any]:
    """What settings that were found hold for."""
    return {"model": model, "trl": metadata.version("trl"), "cores": os.cpu_count(), "dtype": dtype}


def known_settings(model: str, dtype: Dtype) -> Result | None:
    """Settings found before, if they are for this model, type, TRL and as many cores."""
    if not SETTINGS.exists():
        return None
    found: Result = json.loads(SETTINGS.read_text())
    return found if found.get("of") == identity(model, dtype) else None


def find_settings(model: str, dtype: Dtype, folder: Path, chats: int, batch_rows: int) -> Result:
    """TRL's fastest settings, starting from the best of single changes and joining those that helped."""
    tried: dict[str, dict[str, float | str | None]] = {}

    def attempt(change: dict[str, Any]) -> float:
        size = {"chats": chats, "batch_rows": batch_rows, "model": model, "dtype": dtype}
        result = run_side("trl", folder, **size, **change)
        named = ", ".join(f"{key}={value}" for key, value in change.items()) or f"first: {FIRST}"
        tried[named] = {key: result[key] for key in ("speed", "peak_gib")}
        return float(result["speed"])

    own = IN_FLOAT32 if dtype == "float32" else {}
    changes = [own | change for change in TRIED if not own.keys() & change.keys()]
    gains = [(attempt(change), change) for change in changes]
    first = gains[0][0]
    best = max(gains, key=lambda gain: gain[0])
    joined: dict[str, Any] = {**own}
    for speed, change in sorted(gains, key=lambda gain: gain[0]):
        if speed > first:
            joined |= change
    if joined != best[1] and attempt(joined) > best[0]:
        best = (0.0, joined)
    print_figures("TRL's settings: tokens a second, peak GiB", tried)
    found = {"best": FIRST | best[1], "tried": tried, "of": identity(model, dtype), "measured": machine()}
    OUT.mkdir(exist_ok=True)
    SETTINGS.write_text(json.dumps(found, indent=1) + "\n")
    return found


def compare(
    model: str,
    dtype: Dtype,
    folder: Path,
    settings: Result,
    chats: int,
    batch_rows: int,
    repeats: int,
    micro_batch: int,
) -> None:
    """Both sides in turn, and what matrix products allow; ends with an error where a goal is missed."""
    import torch

    size = {"chats": chats, "batch_rows": batch_rows, "model": model, "dtype": dtype}
    theirs, mine, limits = [], [], []
    for _ in range(repeats):
        theirs.append(run_side("trl", folder, **size, **settings["best"]))
        mine.append(run_side("ours", folder, **size, micro_batch=micro_batch))
        share = mine[-1]["labels"] / sum(mine[-1]["tokens"])
        limits.append(1 / seconds_a_token(model, 256 * micro_batch, share, getattr(torch, dtype), "cpu"))
    speed, peak = (
        [median(run[key] for run in runs) for runs in (mine, theirs)] for key in ("speed", "peak_gib")
    )
    limit = median(limits)
    curves = mine[0]["losses"], theirs[0]["losses"]
    falls = [mean(curve[: len(curve) // 2]) - mean(curve[len(curve) // 2 :]) for curve in curves]
    if settings["best"]["packing"]:  # the steps hold other rows: their mean is compared
        apart = abs(mean(curves[0]) - mean(curves[1])) / mean(curves[1])
    else:
        apart = max(abs(a - b) / b for a, b in zip(*curves, strict=True))
    healthy = falls[1] / falls[0] if falls[0] > 0 else float("nan")
    suffix = "" if dtype == "bfloat16" else f"_{dtype}"
    checks = [
        check(f"training_speed_vs_trl{suffix}", speed[0] / speed[1], ">=", SPEED[dtype]),
        check(f"training_memory_vs_trl{suffix}", peak[0] / peak[1], "<=", 0.6),
        # Below a half, all that is around the products costs more than they do.
        check(f"training_share_of_limit{suffix}", speed[0] / limit, ">=", 0.5),
        check(f"loss_curve_agrees{suffix}", apart, "<=", 0.02),
        check(f"trl_healthy{suffix}", healthy, ">=", 0.9),
    ]
    figures = {
        side: {"tokens_per_second": speed[n], "peak_gib": peak[n]} for n, side in enumerate(("ours", "trl"))
    }
    print_figures("medians", figures)
    print(f"matrix products alone would allow {limit:.0f} tokens a second")
    finish(
        f"training{suffix}", f"LoRA training beside TRL, {dtype}", checks,
        settings=settings, medians=figures, limit=limit, losses={"ours": curves[0], "trl": curves[1]},
        speeds={"ours": [run["speed"] for run in mine], "trl": [run["speed"] for run in theirs]},
    )  # fmt: skip


def main(
    part: Literal["all", "settings", "compare"] = typer.Argument("all"),
    model: str = ModelSection().name,
    dtype: Literal["auto", "float32", "bfloat16"] = "auto",
    chats: int = 64,
    batch_rows: int = 8,
    repeats: int = 2,
    micro_batch: int = FineTuningSection().micro_batch_rows,
    tried_chats: int = 24,  # three steps of 8 rows: the largest micro-batch tried
) -> None:
    """Measure; ends with an error where a goal is missed."""
    if find_spec("trl") is None:
        raise SystemExit(
            "benchmarks.training.versus_trl needs TRL: pip install -c constraints.txt -e '.[benchmarks]'"
        )
    path = str(resolve_model(model))
    own = choose_dtype(ModelSection(name=path, dtype=dtype, device="cpu")).dtype
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_start(path, folder)
        settings = known_settings(path, own) if part == "compare" else None
        settings = settings or find_settings(path, own, folder, tried_chats, tried_chats // 3)
        if part != "settings":
            compare(path, own, folder, settings, chats, batch_rows, repeats, micro_batch)


if __name__ == "__main__":
    typer.run(main)
