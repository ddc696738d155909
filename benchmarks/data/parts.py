"""What benchmarks.data.data_plane measures in processes of their own: `python -m benchmarks.data.parts PART ROOT N`.

Each prints a line of JSON with its seconds (wall clock, imports left out) and the peak of its memory, GiB of resident
set, all included.
"""

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

DRAWN = 4096
AGGREGATE = "select iteration % 10 as k, count(*) as n, avg(reward) as reward from {} group by k order by k"


def draw(root: Path, folders: int) -> dict[str, float]:
    """A replay draw over the first iterations, as stage bellman-targets makes it: the files' footers are checked, both
    tables read, and the drawn ids given. `find` is what comes before: reading the manifests."""
    from benchmarks.data.large_run import RUN
    from storage.replay import draw_replay
    from storage.store import Store
    from tasks.runtime.stage import Inputs

    store, begun = Store(root), time.perf_counter()
    tables = {
        table: [c for i in range(folders) if (c := store.committed(RUN, stage, i))]
        for table, stage in (("transitions", "rollout"), ("priorities", "critic-sft"))
    }
    found, inputs = time.perf_counter(), Inputs(tables=tables)
    drawn = draw_replay(
        inputs.scan("transitions"), inputs.scan("priorities"),
        count=DRAWN, alpha=0.6, beta=0.4, epsilon=0.01, seed=1,
    )  # fmt: skip
    seconds = time.perf_counter() - found
    if len(drawn.ids) != DRAWN or not all(drawn.ids):
        raise RuntimeError("the draw is not whole")
    return {"seconds": seconds, "find": found - begun, "candidates": drawn.candidates}


def scan(root: Path, folders: int) -> dict[str, float]:
    """The columns a draw can't do without, transition_id and priority, wherever they stand, by DuckDB alone."""
    return _query(
        f"select (select max(transition_id) from {_files(root, 'rollout', 'transitions', folders)}), * "
        f"from (select max(transition_id), max(priority) from {_files(root, 'critic-sft', 'priorities', folders)})"
    )


def histories(root: Path, folders: int) -> dict[str, float]:
    """The states of all transitions of the first iterations of a run, rebuilt."""
    from benchmarks.data.large_run import RUN
    from storage.history import rebuild_states
    from storage.store import Store, scan_parts

    store = Store(root)
    parts = [c for i in range(folders) if (c := store.committed(RUN, "rollout", i))]
    ids = scan_parts(parts, "transitions").select("transition_id").collect()["transition_id"].to_list()
    begun = time.perf_counter()
    states = rebuild_states(scan_parts(parts, "transitions"), ids)
    seconds = time.perf_counter() - begun
    if len(states) != len(ids):
        raise RuntimeError("states are missing")
    return {"seconds": seconds, "transitions": len(ids)}


def bare_glob(root: Path) -> str:
    """All files of table transitions."""
    return f"read_parquet('{root}/large/rollout/*/*/transitions.parquet', hive_partitioning = false)"


def _files(root: Path, stage: str, table: str, folders: int) -> str:
    found = sorted((root / "large" / stage).glob(f"*/*/{table}.parquet"))[:folders]
    return f"read_parquet([{', '.join(repr(str(path)) for path in found)}], hive_partitioning = false)"


def _query(text: str) -> dict[str, float]:
    import duckdb

    begun = time.perf_counter()
    duckdb.connect().sql(text).fetchall()
    return {"seconds": time.perf_counter() - begun}


PARTS: dict[str, Callable[[Path, int], dict[str, float]]] = {
    part.__name__: part for part in (draw, scan, histories)
}

if __name__ == "__main__":
    measured = PARTS[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    print(json.dumps({**measured, "peak_gib": peak}))
