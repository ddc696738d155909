"""How cost grows: with items, replay, episode length, shards and iterations; each measured, drawn, its exponent named.

python -m benchmarks.data.growth measure [AXIS ...]   the axes, or those that are named; then the curves are drawn
python -m benchmarks.data.growth draw

Every point is a process of its own. `cost` is its processor seconds after fixture and imports, which other work on the
machine changes least; of axis requests their number. `peak_gib` is its resident set. The exponent is the slope of log
cost over log size, from the second point to the last: 1 is linear, 0 does not grow.

items       rows of a stage, from row models to the committed folder
replay      transitions that a draw by priority chooses 4,096 from, in files of 10,000
length      steps of an episode; the states of 32,000 transitions are rebuilt
shards      shards of a stage of 16,000 one-step episodes; the parent finds, checks and reads them
iterations  iterations of a run whose SQL views are made (`nlac sql`); small tables, so that files count
inputs      iterations behind the one whose stage looks up its inputs: their manifests are read
requests    iterations of a run in a bucket; requests of the next commit of one file
"""

import json
import math
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from schemas.load import PROJECT_ROOT

RESULTS = PROJECT_ROOT / "docs" / "results" / "growth.json"
IMAGE = PROJECT_ROOT / "docs" / "images" / "growth.png"
MERGED, STATES, FILE = 16_000, 32_000, 10_000
Measured = dict[str, float]

app = typer.Typer(no_args_is_help=True)


@dataclass
class Clock:
    """Processor seconds of what it encloses; or the requests that were counted."""

    cost: float = 0.0

    @contextmanager
    def runs(self) -> Iterator[None]:
        begun = time.process_time()
        yield
        self.cost += time.process_time() - begun


def items(root: Path, size: int, clock: Clock) -> None:
    """Commit a table of so many row models."""
    from benchmarks.data.large_run import Size, Texts, commit_frames, transitions_frame
    from schemas.frames import to_frame
    from schemas.rows import Transition
    from storage.store import Store

    frame = transitions_frame(Texts(words=200_000), Size(1, size), 0)
    rows = [Transition.model_validate(row) for row in frame.iter_rows(named=True)]
    with clock.runs():
        commit_frames(Store(root), "rollout", 0, {Transition: to_frame(Transition, rows)})


def replay(root: Path, size: int, clock: Clock) -> None:
    """A draw from so many transitions."""
    from benchmarks.data.large_run import RUN, Size, build
    from benchmarks.data.parts import draw
    from storage.store import Store

    folders = size // FILE
    if len(Store(root).iterations(RUN)) < folders:
        build(root, Size(folders, FILE))
    with clock.runs():
        draw(root, folders)


def length(root: Path, size: int, clock: Clock) -> None:
    """States of episodes of so many steps."""
    from benchmarks.data.large_run import Size, Texts, transitions_frame
    from storage.history import rebuild_states

    frame = transitions_frame(Texts(words=200_000), Size(1, STATES, steps=size), 0)
    with clock.runs():
        rebuild_states(frame.lazy(), frame["transition_id"].to_list())


def shards(root: Path, size: int, clock: Clock) -> None:
    """What a stage's parent does with so many shards."""
    import asyncio

    from benchmarks.overhead.waiting import CONCURRENCY, SECONDS, waiting_config
    from schemas.shards import Shard
    from storage.store import Store
    from tasks.imports import allow_imports
    from tasks.pipeline.decision import decide
    from tasks.pipeline.runner import carry_out
    from tasks.pipeline.shards import carry_out_shard

    allow_imports(["benchmarks"])
    os.environ |= {SECONDS: "0", CONCURRENCY: "64"}
    store, config = Store(root), waiting_config(MERGED, size, "growth")
    decision = decide(store, config, "rollout", 0)
    if size > 1:
        for shard in Shard.all(size):
            asyncio.run(carry_out_shard(store, config, decision, shard))
        with clock.runs():
            asyncio.run(carry_out(store, config, decision))


def iterations(root: Path, size: int, clock: Clock) -> None:
    """SQL over a run of so many iterations."""
    from benchmarks.data.large_run import Size, build
    from storage.sql.views import connect

    store = build(root, Size(size, 30))
    with clock.runs():
        connect(store).sql("select count(*), avg(reward) from transitions").fetchall()


def inputs(root: Path, size: int, clock: Clock) -> None:
    """The inputs of a stage that reads all earlier iterations."""
    from benchmarks.data.large_run import RUN, Size, build

    store = build(root, Size(size, 30))
    with clock.runs():
        found = [store.committed(RUN, stage, n) for n in range(size) for stage in ("rollout", "critic-sft")]
    assert None not in found


def requests(root: Path, size: int, clock: Clock) -> None:
    """Requests of a commit after so many."""
    from benchmarks.data.object_stores import COMMIT
    from benchmarks.data.object_stores import requests as requests_after

    clock.cost = requests_after(size, root)[COMMIT]


AXES: dict[str, tuple[Callable[[Path, int, Clock], None], tuple[int, ...]]] = {
    "items": (items, (5_000, 10_000, 20_000, 40_000, 80_000)),
    "replay": (replay, (50_000, 100_000, 200_000, 400_000)),
    "length": (length, (8, 16, 32, 64, 128)),
    "shards": (shards, (2, 4, 8, 16, 32)),
    "iterations": (iterations, (10, 20, 40, 80, 160)),
    "inputs": (inputs, (10, 20, 40, 80, 160, 320)),
    "requests": (requests, (1, 10, 100)),
}


def exponent(points: list[Measured]) -> float:
    """Slope of log cost over log size, from the second point on."""
    first, last = points[1], points[-1]
    return math.log(last["cost"] / first["cost"]) / math.log(last["size"] / first["size"])


@app.command()
def part(axis: str, size: int) -> None:
    """One point, in this process, as a line of JSON."""
    clock = Clock()
    with TemporaryDirectory(prefix="nlac-growth-") as folder:
        AXES[axis][0](Path(folder), size, clock)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    print(json.dumps({"size": size, "cost": round(clock.cost, 4), "peak_gib": round(peak, 3)}))


@app.command()
def measure(
    axes: Annotated[list[str] | None, typer.Argument(help="some of the axes")] = None,
    into: Annotated[Path, typer.Option()] = RESULTS,
) -> None:
    """Measure, write the results, draw."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=PROJECT_ROOT, capture_output=True, text=True
    )
    known: dict[str, Any] = json.loads(into.read_text())["axes"] if into.exists() else {}
    for axis in axes or AXES:
        points: list[Measured] = []
        for size in AXES[axis][1]:
            command = [sys.executable, "-m", "benchmarks.data.growth", "part", axis, str(size)]
            said = subprocess.run(command, check=True, capture_output=True, text=True, cwd=PROJECT_ROOT)
            points.append(json.loads(said.stdout.splitlines()[-1]))
            print(axis, points[-1], flush=True)
        known[axis] = {
            "exponent": round(exponent(points), 2),
            "date": datetime.now(UTC).date().isoformat(),
            "commit": commit.stdout.strip(),
            "points": points,
        }
    content = {
        "command": "python -m benchmarks.data.growth measure",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, shared with other work",
        "axes": {axis: known[axis] for axis in AXES if axis in known},
    }
    into.write_text(json.dumps(content, indent=2) + "\n")
    draw(into)


@app.command()
def draw(
    results: Annotated[Path, typer.Option()] = RESULTS, image: Annotated[Path, typer.Option()] = IMAGE
) -> None:
    """Draw cost over size, an axis a panel, with a line of exponent 1."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    found = json.loads(results.read_text())["axes"]
    figure, panels = plt.subplots(2, 4, figsize=(12.0, 5.6))
    for panel, (axis, measured) in zip(panels.flat, found.items(), strict=False):
        sizes, costs = ([point[name] for point in measured["points"]] for name in ("size", "cost"))
        panel.plot(sizes, [costs[-1] * size / sizes[-1] for size in sizes], "--", color="grey")
        panel.plot(sizes, costs, "o-")
        panel.set(xscale="log", yscale="log", title=f"{axis}: exponent {measured['exponent']:.2f}")
        panel.set_xticks(sizes, [f"{size:,}" for size in sizes], fontsize=7)
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    for panel in panels.flat[len(found) :]:
        panel.axis("off")
    figure.supylabel("processor seconds; requests")
    figure.tight_layout()
    image.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(image, dpi=110)


if __name__ == "__main__":
    app()
