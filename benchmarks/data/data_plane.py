"""The data plane over a run of a thousand iterations: replay, SQL, commits, histories; as ratios within one run.

python -m benchmarks.data.data_plane [--folders 1000 --rows 10000] [--folder DIR] [--keep]

Builds the run of `benchmarks.data.large_run` (10,000,000 transitions in 1,000 folders, 4,000,000 of them scored,
1,000,000 twice; some 6 GiB and ten minutes), or uses the one in the folder, and removes it afterwards unless --keep.
Sides alternate, after one round that does not count; figures are medians of --repeats:

replay_draw_vs_scan   a draw of 4,096 by priority, with weights and ids, over one DuckDB scan of the columns it needs:
                      transition_id (of transitions and priorities) and priority. Neither counts imports, and the
                      draw does not count reading the 2,000 manifests.
replay_draw_peak_gib  the peak resident set of the drawing process, all of it.
replay_draw_growth    time per transition of the draw over all folders, over that of a quarter of them.
sql_vs_glob           `nlac sql "SELECT ... GROUP BY"` over `python -c "import duckdb; ..."` of the same query on a bare
                      glob, both whole processes from start to exit.
commit_vs_polars      committing a million rows (written, digested, hashed, fsynced, renamed, named current) over
                      Polars' write_parquet and fsync of the same frame: its throughput, so more is better.
histories_linear      time per transition of rebuilding 100,000 states of 30-step episodes, over that of 25,000.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from benchmarks.checks import OUT, Check, check, finish, print_figures
from benchmarks.data.large_run import Size, Texts, build, commit_frames, transitions_frame
from benchmarks.data.parts import AGGREGATE, bare_glob
from schemas.rows import Transition
from storage.files import fsync
from storage.store import Store

Measured = dict[str, float]


def part(name: str, root: Path, folders: int) -> Measured:
    """One part of benchmarks.data.parts, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.data.parts", name, str(root), str(folders)]
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def alternate(repeats: int, things: dict[str, Callable[[], Measured]]) -> dict[str, Measured]:
    """Measure things in turn, after a round that does not count; medians of each of their figures."""
    for thing in things.values():
        thing()
    rounds: dict[str, list[Measured]] = {name: [] for name in things}
    for _ in range(repeats):
        for name, thing in things.items():
            rounds[name].append(thing())
    return {
        name: {figure: median(r[figure] for r in measured) for figure in measured[0]}
        for name, measured in rounds.items()
    }


def whole(command: list[str]) -> Measured:
    """A process from start to exit, seconds."""
    begun = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return {"seconds": time.perf_counter() - begun}


def replay(root: Path, folders: int, repeats: int) -> tuple[list[Check], dict[str, Measured]]:
    """The draw beside scans of its columns, and over a quarter of the run."""
    quarter = max(1, folders // 4)
    found = alternate(
        repeats,
        {
            "draw": lambda: part("draw", root, folders),
            "scan": lambda: part("scan", root, folders),
            "draw of a quarter": lambda: part("draw", root, quarter),
        },
    )
    seconds = {name: measured["seconds"] for name, measured in found.items()}
    growth = (seconds["draw"] / folders) / (seconds["draw of a quarter"] / quarter)
    return [
        check("replay_draw_vs_scan", seconds["draw"] / seconds["scan"], "<=", 3),
        check("replay_draw_peak_gib", found["draw"]["peak_gib"], "<=", 1),
        check("replay_draw_growth", growth, "<=", 1.3),
    ], found


def queries(root: Path, folders: int, repeats: int) -> tuple[list[Check], dict[str, Measured]]:
    """An aggregate, each side a whole process."""
    nlac = [sys.executable, "-c", "from flows.cli.main import main; main()", "sql", "--data", str(root)]
    bare = f"import duckdb; print(duckdb.sql({AGGREGATE.format(bare_glob(root))!r}))"
    found = alternate(
        repeats,
        {
            "nlac sql": lambda: whole([*nlac, AGGREGATE.format("transitions")]),
            "bare glob": lambda: whole([sys.executable, "-c", bare]),
        },
    )
    ratio = found["nlac sql"]["seconds"] / found["bare glob"]["seconds"]
    return [check("sql_vs_glob", ratio, "<=", 3)], found


def commits(folder: Path, rows: int, repeats: int) -> tuple[list[Check], dict[str, Measured]]:
    """One table of realistic text, committed and merely written."""
    frame = transitions_frame(Texts(), Size(1, rows), 0)

    def written() -> Measured:
        path = folder / "frame.parquet"
        begun = time.perf_counter()
        frame.write_parquet(path)
        fsync(path)
        seconds, size = time.perf_counter() - begun, path.stat().st_size
        path.unlink()
        return {"seconds": seconds, "mib": size / (1 << 20)}

    def committed() -> Measured:
        store = Store(folder / "store")
        begun = time.perf_counter()
        made = commit_frames(store, "rollout", 0, {Transition: frame})
        seconds = time.perf_counter() - begun
        shutil.rmtree(store.root)
        return {"seconds": seconds, "mib": sum(f.bytes for f in made.manifest.files) / (1 << 20)}

    found = alternate(repeats, {"commit": committed, "write_parquet": written})
    ratio = found["write_parquet"]["seconds"] / found["commit"]["seconds"]
    return [check("commit_vs_polars", ratio, ">=", 0.5)], found


def histories(folder: Path, rows: int, repeats: int) -> tuple[list[Check], dict[str, Measured]]:
    """States of all transitions of one run, and of a quarter as many."""
    texts = Texts()
    for count, name in ((rows, "all"), (rows // 4, "quarter")):
        commit_frames(
            Store(folder / name), "rollout", 0, {Transition: transitions_frame(texts, Size(1, count), 0)}
        )
    found = alternate(
        repeats,
        {
            "histories": lambda: part("histories", folder / "all", 1),
            "of a quarter": lambda: part("histories", folder / "quarter", 1),
        },
    )
    each = {name: measured["seconds"] / measured["transitions"] for name, measured in found.items()}
    return [check("histories_linear", each["histories"] / each["of a quarter"], "<=", 1.3)], found


def main(
    folders: Annotated[int, typer.Option(min=4, help="iterations of the run")] = 1000,
    rows: Annotated[int, typer.Option(min=30, help="transitions of each")] = 10_000,
    folder: Annotated[Path, typer.Option(help="data root of the run; reused if it is there")] = OUT
    / "data_plane",
    keep: Annotated[bool, typer.Option("--keep", help="leave the run for the next time")] = False,
    repeats: Annotated[int, typer.Option(min=1, help="measured rounds")] = 5,
    commit_rows: Annotated[int, typer.Option(min=1, help="rows of the table that is committed")] = 1_000_000,
    history_rows: Annotated[
        int, typer.Option(min=120, help="transitions whose states are rebuilt")
    ] = 100_000,
    only: Annotated[list[str] | None, typer.Option(help="replay, queries, commits, histories")] = None,
) -> None:
    """Print the tables, write benchmarks/out/data_plane.json; exit code 1 where a check misses its bar."""
    wanted = only or ["replay", "queries", "commits", "histories"]
    checks: list[Check] = []
    figures: dict[str, Measured] = {}
    if {"replay", "queries"} & set(wanted):
        begun = time.perf_counter()
        build(folder.resolve(), Size(folders, rows))
        print(f"{folder}: {folders * rows:,} transitions, there after {time.perf_counter() - begun:.0f} s")
    with tempfile.TemporaryDirectory(dir=_made(folder.resolve().parent)) as scratch:
        parts = {
            "replay": lambda: replay(folder.resolve(), folders, repeats),
            "queries": lambda: queries(folder.resolve(), folders, repeats),
            "commits": lambda: commits(Path(scratch), commit_rows, repeats),
            "histories": lambda: histories(Path(scratch), history_rows, repeats),
        }
        for name in wanted:
            held, found = parts[name]()
            checks += held
            figures |= found
            print_figures(name, {k: {"seconds": v["seconds"]} for k, v in found.items()})
    if not keep and (folder / "fixture.json").exists():
        shutil.rmtree(folder)
    finish("data_plane", "Data plane", checks, figures=figures, transitions=folders * rows)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


if __name__ == "__main__":
    typer.run(main)
