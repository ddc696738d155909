"""How a stage scales with the workers that take its shards.

python -m benchmarks.overhead.shards measure --workers 8 --items 200000   one point of the curve
python -m benchmarks.overhead.shards draw                                 the curves, from all points

A point is a stage rollout of one-step episodes in as many shards as there are workers. A worker is a process that
computes and commits its shard, as a flow run does (`nlac/rollout -p shard=3/8`). All begin at the same time. When the
last one has ended, the parent merges. Their engines wait for a stated time at a stated concurrency instead of computing
(`benchmarks.overhead.waiting`), so a worker's speed is bounded, and the machine's cores need not be as many as the
workers. Left out is what Prefect takes to start a flow run.

seconds: from the start of the stage to its commit. The workers' imports are over before; `parent_seconds` of it are
    the parent's, which begin when the last shard is committed.
cpu_seconds_per_item: processor time of all workers after their imports, and of the parent, by item.
parent_seconds_per_shard, parent_microseconds_per_item: `parent_seconds` by shard, and by item.
speed: items per second.
"""

import asyncio
import json
import multiprocessing as mp
import os
import platform
import subprocess
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from multiprocessing.synchronize import Barrier
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from benchmarks.overhead.waiting import CONCURRENCY, SECONDS, waiting_config
from schemas.load import PROJECT_ROOT
from schemas.shards import Shard
from storage.store import Store
from tasks.imports import allow_imports
from tasks.pipeline.decision import decide
from tasks.pipeline.runner import carry_out
from tasks.pipeline.shards import carry_out_shard

RESULTS = PROJECT_ROOT / "docs" / "results" / "shards.json"
IMAGE = PROJECT_ROOT / "docs" / "images" / "shards.png"
RUN = "scaling"
GOAL = 7.0
"""How many times as fast 8 workers are to be as one."""

app = typer.Typer(no_args_is_help=True)


@dataclass(frozen=True)
class Point:
    """What was measured with so many workers; see the module's docstring."""

    workers: int
    items: int
    wait_seconds: float
    concurrency: int
    seconds: float
    parent_seconds: float
    slowest_shard_seconds: float
    fastest_shard_seconds: float
    worker_cpu_seconds: float
    parent_cpu_seconds: float
    digest: str
    machine: str
    date: str
    commit: str
    load_before: float

    @property
    def speed(self) -> float:
        """Items per second."""
        return self.items / self.seconds

    @property
    def stated_speed(self) -> float:
        """Items per second that the engines allow."""
        return self.workers * self.concurrency / self.wait_seconds


def work(root: Path, items: int, shard: Shard, start: Barrier, cpu: "mp.Queue[tuple[float, float]]") -> None:
    """Compute and commit a shard; gives processor and wall seconds."""
    allow_imports(["benchmarks"])
    store, config = Store(root), waiting_config(items, shard.count, RUN)
    decision = decide(store, config, "rollout", 0)
    start.wait()
    begun, used = time.monotonic(), time.process_time()
    if shard.count > 1:
        asyncio.run(carry_out_shard(store, config, decision, shard))
    else:  # as a stage without shards is computed
        asyncio.run(carry_out(store, config, decision))
    cpu.put((time.process_time() - used, time.monotonic() - begun))


def one_point(root: Path, workers: int, items: int, wait: float, concurrency: int) -> Point:
    """Run a stage with so many workers."""
    os.environ |= {SECONDS: str(wait), CONCURRENCY: str(concurrency)}
    allow_imports(["benchmarks"])
    context, load = mp.get_context("spawn"), os.getloadavg()[0]
    start, spent = context.Barrier(workers + 1), context.Queue()
    processes = [
        context.Process(target=work, args=(root, items, shard, start, spent)) for shard in Shard.all(workers)
    ]
    for process in processes:
        process.start()
    start.wait()
    begun = time.monotonic()
    each = [spent.get() for _ in processes]
    for process in processes:
        process.join()
    merging, used = time.monotonic(), time.process_time()
    store, config = Store(root), waiting_config(items, workers, RUN)
    made = asyncio.run(carry_out(store, config, decide(store, config, "rollout", 0))).committed
    over = time.monotonic()
    if made.manifest.tables["episodes"].rows != items or made.manifest.tables["episodes"].rejected:
        raise SystemExit("not every episode was played; nothing was measured")
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=PROJECT_ROOT, capture_output=True, text=True
    )
    return Point(
        workers, items, wait, concurrency,
        seconds=over - begun, parent_seconds=over - merging,
        slowest_shard_seconds=max(s for _, s in each), fastest_shard_seconds=min(s for _, s in each),
        worker_cpu_seconds=sum(c for c, _ in each), parent_cpu_seconds=time.process_time() - used,
        digest=made.manifest.tables["transitions"].digest,
        machine=f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}",
        date=datetime.now(UTC).date().isoformat(), commit=commit.stdout.strip(), load_before=load,
    )  # fmt: skip


def told(point: Point) -> dict[str, float | int]:
    """The figures of a point, for people."""
    return {
        "workers": point.workers,
        "items": point.items,
        "items_per_second": round(point.speed, 2),
        "share_of_stated_speed": round(point.speed / point.stated_speed, 4),
        "cpu_milliseconds_per_item": round(
            1000 * (point.worker_cpu_seconds + point.parent_cpu_seconds) / point.items, 3
        ),
        "parent_seconds_per_shard": round(point.parent_seconds / point.workers, 3),
        "parent_microseconds_per_item": round(1e6 * point.parent_seconds / point.items, 1),
    }


@app.command()
def measure(
    workers: Annotated[int, typer.Option(min=1)],
    items: Annotated[int, typer.Option(min=1)] = 200_000,
    wait: Annotated[float, typer.Option(help="seconds of a request")] = 0.64,
    concurrency: Annotated[int, typer.Option(help="requests at a time, of a worker")] = 64,
    into: Annotated[Path, typer.Option(help="points are added to it")] = RESULTS,
) -> None:
    """Measure one point of the curve and add it to the results; a point of as many workers and items is replaced."""
    with TemporaryDirectory(prefix="nlac-shards-") as folder:
        point = one_point(Path(folder), workers, items, wait, concurrency)
    print(json.dumps(told(point)))
    points = [
        one for one in read(into)
        if (one.workers, one.items, one.wait_seconds) != (workers, items, wait)
    ]  # fmt: skip
    points = sorted([*points, point], key=lambda one: (one.wait_seconds, one.workers, one.items))
    content = {
        "command": "python -m benchmarks.overhead.shards measure --workers N --items N --wait S",
        "points": [{**asdict(one), "told": told(one)} for one in points],
    }
    into.parent.mkdir(parents=True, exist_ok=True)
    into.write_text(json.dumps(content, indent=2) + "\n")


def read(path: Path) -> list[Point]:
    """The points that were measured before."""
    if not path.exists():
        return []
    known = json.loads(path.read_text())["points"]
    return [Point(**{k: v for k, v in one.items() if k != "told"}) for one in known]


@app.command()
def draw(
    results: Annotated[Path, typer.Option()] = RESULTS, image: Annotated[Path, typer.Option()] = IMAGE
) -> None:
    """Draw a curve for each stated speed of a worker, and say how many times as fast 8 workers are as one.

    Where a count was measured with several numbers of items, the largest counts.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    curves: dict[float, dict[int, Point]] = {}
    for one in sorted(read(results), key=lambda one: one.items):
        curves.setdefault(one.stated_speed / one.workers, {})[one.workers] = one
    figure, axes = plt.subplots(figsize=(6.4, 4.0))
    for stated, by_workers in sorted(curves.items()):
        points = [by_workers[count] for count in sorted(by_workers)]
        counts = [one.workers for one in points]
        axes.plot(counts, [one.stated_speed for one in points], "--", color="grey")
        label = f"{stated:g} items/s a worker"
        axes.plot(counts, [one.speed for one in points], "o-", label=label)
        for one in points:
            place = (one.workers, one.speed)
            axes.annotate(f"{one.items:,}", place, (4, -12), textcoords="offset points", fontsize=7)
        if {1, 8} <= by_workers.keys():
            times = by_workers[8].speed / by_workers[1].speed
            print(f"{label}: 8 workers do {times:.2f} times the items per second of one (goal: {GOAL:g})")
    counts = sorted({one.workers for one in read(results)})
    axes.set(xscale="log", yscale="log", xlabel="workers, and shards", ylabel="items per second")
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(title="dashed: as the engines allow; numbers: items", fontsize=8, title_fontsize=8)
    figure.tight_layout()
    image.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(image, dpi=110)


if __name__ == "__main__":
    app()
