"""Faults of what runs beside the stages: Prefect's server is killed and MLflow is away, or the databases of both are
locked.

A real stack (`nlac up`), and in it an iteration that is held in the middle of its stage while the fault happens.
"""

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmarks.reliability.disk_faults import digests
from benchmarks.reliability.small_run import run_config
from flows.stack.processes import marked_processes
from schemas.load import PROJECT_ROOT, load_config
from storage.store import Store
from storage.verify import verify
from tests.support.stack import CONFIG, LocalStack
from tests.support.waiting import wait_until

LOCKED_SECONDS = 60.0
IN_PROCESS = """
import asyncio, sys
from pathlib import Path
from schemas.load import load_config
from storage.store import Store
from tasks.pipeline.iterations import run_iteration
asyncio.run(run_iteration(Store(Path(sys.argv[1])), load_config(sys.argv[2])))
"""


@contextmanager
def stack_in(folder: Path) -> Iterator[LocalStack]:
    """A stack of its own, whose player is steered by files."""
    for name in ("home", "steer", "data"):
        (folder / name).mkdir()
    model = run_config().model.model_dump(mode="json")
    config = folder / "trial.yaml"
    config.write_text(yaml.safe_dump({**CONFIG, "run": "trial", "algorithm": "react", "model": model}))
    ours = {
        "HOME": str(folder / "home"), "NLAC_TEST_STEER": str(folder / "steer"), "PYTHONPATH": str(PROJECT_ROOT),
        "NLAC_ALLOW_IMPORT": "tests", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    kept = {k: v for k, v in os.environ.items() if k not in ("NLAC_DATA", "XDG_CACHE_HOME", "HF_HOME")}
    local = LocalStack(
        folder / "data", folder / "home", folder / "steer", PROJECT_ROOT, config, {**kept, **ours}
    )
    local.up_said = local.nlac("up", "--data", str(local.data)).stdout
    try:
        yield local
    finally:
        local.nlac("down", "--data", str(local.data))


def disturbed(folder: Path, fault: Callable[[LocalStack], dict[str, Any]]) -> dict[str, Any]:
    """Run an iteration, disturb it while its stage waits for an answer, and let it go on.

    Args:
        folder: where all of it lies.
        fault: disturbs; it takes away the file `wait` when the stage is to go on.

    Raises:
        AssertionError: the iteration did not finish, or not as without the fault.
    """
    with stack_in(folder) as stack:
        (stack.steer / "wait").touch()
        run = stack.start("iteration", config=str(stack.config), run="trial", iteration=0)
        journals = "trial/.requests/*.journal"
        wait_until(lambda: list(stack.data.glob(journals)), 240, "a stage that asks")
        began = time.monotonic()
        found = fault(stack)
        (stack.steer / "wait").unlink(missing_ok=True)
        ended = stack.finish(run, 360)
        found["seconds to the end"] = round(time.monotonic() - began, 1)
        found["attempts"] = {child["name"]: child["run_count"] for child in stack.children(run)}
        assert ended["state_type"] == "COMPLETED", ended["state"]
        logs = (file.read_text(errors="replace") for file in (stack.data / ".stack" / "logs").glob("*.log"))
        found["left out"] = sum(log.count("is left out") for log in logs)
        store, whole = stack.store, Store(folder / "whole")
    command = [sys.executable, "-c", IN_PROCESS, str(whole.root), str(stack.config)]
    subprocess.run(command, env=stack.environment, cwd=PROJECT_ROOT, check=True)
    config = load_config(stack.config)
    assert digests(store, config) == digests(whole, config), "another outcome than without a fault"
    assert verify(store) == []
    return found


def _server(stack: LocalStack) -> list[psutil.Process]:
    """The processes of Prefect's server."""
    return [p for p in marked_processes(stack.data) if {"server", "start"} <= set(p.cmdline())]


def _answers(stack: LocalStack) -> bool:
    try:
        return bool(stack.api("/health"))
    except OSError:
        return False


def take_away(stack: LocalStack) -> dict[str, Any]:
    """SIGKILL Prefect's server, whose supervisor starts another, and put in the place of MLflow's store what can't be
    one."""
    home = stack.data / ".mlflow"
    home.rename(stack.data / ".mlflow-away")
    home.write_text("in the way")
    servers = _server(stack)
    assert servers, [process.cmdline() for process in marked_processes(stack.data)]
    began = time.monotonic()
    for process in servers:
        process.kill()
    psutil.wait_procs(servers)
    wait_until(lambda: _answers(stack), 120, "an answer of the new server", every=0.2)
    return {"seconds to the server's answer": round(time.monotonic() - began, 1)}


def lock_databases(stack: LocalStack) -> dict[str, Any]:
    """Lock the databases of Prefect and of MLflow for a minute, while the stages go on."""
    (prefect,) = (stack.data / ".stack" / "prefect").glob("*.db")
    with ExitStack() as held:
        for database in (prefect, stack.data / ".mlflow" / "mlflow.db"):
            holder = held.enter_context(closing(sqlite3.connect(database, timeout=30, isolation_level=None)))
            holder.execute("begin exclusive")
            held.callback(holder.execute, "rollback")
        (stack.steer / "wait").unlink()
        time.sleep(LOCKED_SECONDS)
        committed = stack.store.committed("trial", "evaluation", 0) is not None
    return {"committed while they were locked": committed}
