"""Processes that get in each other's way: two iterations of one run, two runs at once, two writers of one fingerprint.

This module is also the program of these processes: python -m benchmarks.reliability.process_faults WHAT DATA CONFIG
"""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.reliability.disk_faults import digests
from benchmarks.reliability.small_run import run_config
from schemas.config import Config
from schemas.load import PROJECT_ROOT, dump_config, load_config
from storage.store import Store, StoreError, read_manifest
from storage.verify import verify
from tasks.pipeline.iterations import begin_iteration, run_iteration
from tasks.pipeline.runner import run_stage
from tests.support.committed import commit_rows
from tests.support.rows import episode

WRITES = 60
"""Fingerprints that two writers commit at the same time."""


def started(what: str, store: Store, file: Path) -> "subprocess.Popen[str]":
    """A process of this module."""
    return subprocess.Popen(
        [sys.executable, "-m", __name__ if __name__ != "__main__" else __spec__.name, what, str(store.root), str(file)],
        cwd=PROJECT_ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.PIPE,
    )  # fmt: skip


def together(what: str, store: Store, files: list[Path]) -> list[tuple[int, str]]:
    """Run processes that begin their work at the same instant; gives each one's exit code and last line."""
    processes = [started(what, store, file) for file in files]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()[1][-2000:]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    ended = []
    for process in processes:
        out, err = process.communicate()
        ended.append((process.returncode, (err if process.returncode else out).strip().splitlines()))
    return [(code, lines[-1] if lines else "") for code, lines in ended]


def _written(folder: Path, **changes: Any) -> tuple[Config, Path]:
    config = run_config(**changes)
    file = folder / f"{config.run}.yaml"
    file.write_text(dump_config(config))
    return config, file


def two_iterations(folder: Path, **changes: Any) -> dict[str, Any]:
    """Two processes run an iteration of one run: one does, the other is refused by name."""
    config, file = _written(folder, **{"rollout": {"episodes": 40, "max_steps": 6}, **changes})
    store, whole = Store(folder / "data"), Store(folder / "whole")
    asyncio.run(run_iteration(whole, config))
    ended = sorted(together("iterate", store, [file, file]))
    assert [code for code, _ in ended] == [0, 1], ended
    assert "is being written by" in ended[1][1], ended
    assert digests(store, config) == digests(whole, config) and verify(store) == []
    return {"said": ended[1][1].partition(": ")[2]}


def side_by_side(folder: Path) -> dict[str, Any]:
    """Two processes run an iteration of two runs below one data root: each is as it is alone."""
    made = [_written(folder, run=run) for run in ("one", "two")]
    store, alone = Store(folder / "data"), Store(folder / "alone")
    for config, _ in made:
        asyncio.run(run_iteration(alone, config))
    ended = together("iterate", store, [file for _, file in made])
    assert [code for code, _ in ended] == [0, 0], ended
    for config, _ in made:
        assert digests(store, config) == digests(alone, config), config.run
    assert verify(store) == []
    return {}


def two_writers(folder: Path) -> dict[str, Any]:
    """Two processes compute one stage, and commit one fingerprint after the other: each is committed once."""
    config, file = _written(folder)
    store = Store(folder / "data")
    begin_iteration(store, config, 0)
    ended = together("stage", store, [file, file])
    assert [code for code, _ in ended] == [0, 0], ended
    folders = list(store.stage_dir(config.run, "rollout", 0).iterdir())
    held = {read_manifest(path).tables["transitions"].digest for path in folders}
    assert len(held) == 1, "two writers of one fingerprint committed different content"
    ended = together("commit", store, [file, file])
    assert [code for code, _ in ended] == [0, 0], ended
    won = [int(said) for _, said in ended]
    assert sum(won) == WRITES, f"{won} of {WRITES} were committed"
    lost = [n for n in range(WRITES) if store.committed(config.run, "rollout", 1 + n) is None]
    assert verify(store) == [] and lost == [], f"committed, and not named: {lost}"
    return {"attempts of the stage": len(folders), "commits of each writer": won}


def _iterate(store: Store, config: Config) -> None:
    asyncio.run(run_iteration(store, config))


def _stage(store: Store, config: Config) -> None:
    asyncio.run(run_stage(store, config, "rollout", 0))


def _commit(store: Store, config: Config) -> None:
    won = 0
    for number in range(WRITES):
        # A writer that is ahead waits, so that both are at the same fingerprint.
        (store.root / f".at-{number}-{os.getpid()}").touch()
        while len(list(store.root.glob(f".at-{number}-*"))) < 2:
            time.sleep(0)
        try:
            commit_rows(store, "rollout", 1 + number, {"episodes": [episode()]}, run=config.run)
            won += 1
        except StoreError as error:
            assert "never overwritten" in str(error), error
    print(won)


WORK = {"iterate": _iterate, "stage": _stage, "commit": _commit}

if __name__ == "__main__":
    what, data, file = sys.argv[1:]
    given = load_config(file)
    print("ready", flush=True)
    sys.stdin.readline()
    WORK[what](Store(Path(data)), given)
