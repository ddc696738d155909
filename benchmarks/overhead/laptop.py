"""Seconds and memory of `nlac iterate` with the default configuration, by the instructions that the processor may use.

python -m benchmarks.overhead.laptop [native|avx512|avx2 ...]

Each iteration is the first one of a new data root: stack, stages and all, installation apart. Limits on instructions
stand in for processors that lack the others: of oneDNN (ONEDNN_MAX_CPU_ISA), torch's own kernels
(ATEN_CPU_CAPABILITY), MKL (MKL_ENABLE_INSTRUCTIONS) and FBGEMM (FBGEMM_ENABLE_INSTRUCTIONS). `model.dtype: auto` is
settled under the same limits. Results are committed in docs/results/laptop.json, a row for each limit and processor;
docs/benchmarks.md shows them.

Memory is the proportional set size of the command's processes together, looked at every two seconds, at its peak.

laptop_seconds: of the slowest of those that ran, the whole command.
"""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import psutil
import typer

from benchmarks.checks import check, finish, machine, print_figures, processor
from schemas.load import PROJECT_ROOT
from storage.store import Store
from tasks.engines.dtype import choose_dtype
from tasks.pipeline.iterations import frozen_config
from tasks.pipeline.registry import stages_of

GOAL = 240
LOOK_SECONDS = 2.0
RESULTS = PROJECT_ROOT / "docs" / "results" / "laptop.json"
LIMITS: dict[str, dict[str, str]] = {
    "native": {},
    "avx512": {
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "ATEN_CPU_CAPABILITY": "avx512", "MKL_ENABLE_INSTRUCTIONS": "AVX512",
        "FBGEMM_ENABLE_INSTRUCTIONS": "AVX512",
    },
    "avx2": {
        "ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "FBGEMM_ENABLE_INSTRUCTIONS": "AVX2",
    },
}  # fmt: skip
FAST = ("amx_bf16", "avx512_bf16", "avx512f", "avx2")  # what decides which type is fast
Limit = StrEnum("Limit", {name.upper(): name for name in LIMITS})


def measure(limit: str) -> dict[str, Any]:
    """One iteration under a limit.

    Returns:
        limit, machine, load before it, dtype, seconds of the command, its GiB, seconds of each stage.

    Raises:
        SystemExit: the iteration failed; its output is shown.
    """
    for name in set().union(*LIMITS.values()):
        os.environ.pop(name, None)
    os.environ.update(LIMITS[limit])
    with TemporaryDirectory(prefix="nlac-laptop-") as folder:
        load, root, log = os.getloadavg()[0], Path(folder) / "data", Path(folder) / "log"
        command = [sys.executable, "-m", "flows.cli", "iterate", "--data", str(root)]
        most, began = 0.0, time.perf_counter()
        with log.open("w") as said:
            process = psutil.Popen(command, cwd=PROJECT_ROOT, stdout=said, stderr=subprocess.STDOUT)
            while process.poll() is None:
                most = max(most, held(process))
                with suppress(psutil.TimeoutExpired):
                    process.wait(LOOK_SECONDS)
        seconds = time.perf_counter() - began
        if process.returncode:
            raise SystemExit(f"{log.read_text()[-4000:]}\nthe iteration failed")
        store = Store(root)
        config = frozen_config(store, "default", 0)
        assert config is not None
        stages = {}
        for stage in stages_of(config, 0):
            made = store.committed("default", stage, 0)
            assert made is not None
            stages[stage] = round(made.manifest.seconds, 1)
        reason = choose_dtype(config.model.model_copy(update={"dtype": "auto"})).reason
    flags, _, _ = processor()
    return {
        "limit": limit, "machine": machine(), "instructions": [flag for flag in FAST if flag in flags],
        "load_before": round(load, 2), "dtype": config.model.dtype, "reason": reason,
        "seconds": round(seconds, 1), "gib": round(most, 2), "stages": stages,
    }  # fmt: skip


def held(process: psutil.Process) -> float:
    """GiB that a process and its descendants hold."""
    size = 0
    with suppress(psutil.NoSuchProcess):
        for one in (process, *process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                size += one.memory_full_info().pss
    return size / 2**30


def main(
    limits: Annotated[list[Limit] | None, typer.Argument(help="which; default: all")] = None,
) -> None:
    """Measure, print, keep the rows of other processors and limits in docs/results/laptop.json."""
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    made = []
    for limit in limits or list(Limit):
        made.append(measure(limit.value))
        same = [made[-1][name] for name in ("limit", "instructions")]
        rows = [row for row in rows if [row[name] for name in ("limit", "instructions")] != same]
        rows.append(made[-1])
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    figures = {
        row["limit"]: {"all": row["seconds"], "dtype": row["dtype"], "GiB": row["gib"], **row["stages"]}
        for row in made
    }
    print_figures("seconds of an iteration", figures)
    slowest = check("laptop_seconds", max(row["seconds"] for row in made), "<=", GOAL)
    finish("laptop", "An iteration on a laptop", [slowest])


if __name__ == "__main__":
    typer.run(main)
