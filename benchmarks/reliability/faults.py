"""Faults made on purpose, and what each does: disks, processes, services, clocks and HTTP.

python -m benchmarks.reliability.faults [NAME ...]     make them, all or some; the results of others are kept
python -m benchmarks.reliability.page                  put the results into docs/reliability.md

Each fault is made for real, in processes, file systems, databases and servers of its own, and ends with the same check:
nothing is committed that should not be, and the run that goes on afterwards has the digests of an undisturbed one.
"""

import json
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import psutil
import typer

from benchmarks.checks import machine
from benchmarks.learning.result_files import commit
from benchmarks.reliability import disk_faults, http_faults, process_faults, stack_faults
from benchmarks.reliability.findings import FOLDER
from storage.files import replace_text
from tasks.engines.vllm import leases
from tests.support.broken_http import FAULTS as FAULTS_OF_HTTP

RESULT = "faults.json"


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        make: makes it in a folder of its own, checks what came of it, and gives figures.
        what: the fault, in words.
        happens, lost, remedy: what the checks of `make` establish. `happens` may name figures in braces.
    """

    make: Callable[[Path], dict[str, Any]]
    what: str
    happens: str
    lost: str
    remedy: str


def move_clock(folder: Path) -> dict[str, Any]:
    """Read every start time as another clock would have written it, an hour later and an hour earlier."""
    lease = leases.hold(folder, "stage")
    read = psutil.Process.create_time
    held = []
    try:
        for step in (3600.0, -3600.0):
            psutil.Process.create_time = lambda process, step=step: read(process) + step
            held.append(leases.live(folder) == [lease] and lease.exists())
    finally:
        psutil.Process.create_time = read
    assert all(held), "a step of the clock voided a lease"
    return {}


def _http(fault: str) -> Fault:
    happens, remedy = {
        "429 with Retry-After": ("asks again after the time that the server names", "lower engines.*.max_batch"),
        "500": ("asks again, with growing pauses", "start the server again"),
        "reset": ("asks again, with growing pauses", "start the server again"),
        "hang": ("gives an answer up after `options.timeout_s`, and asks again", "start the server again"),
        "cut body": ("does not take the part for the whole, and asks again", "start the server again"),
        "slow drip": ("gives an answer up that is not whole after `options.timeout_s`, and asks again",
                      "start the server again, or raise `options.timeout_s`"),
        "wrong JSON": ("does not guess, and asks again", "name the right `base_url`"),
    }[fault]  # fmt: skip
    return Fault(
        partial(http_faults.break_http, fault=fault),
        f"a model server: {fault}",
        f"The stage {happens}. If that does not pass, it is interrupted after {{lasting[requests]}} requests, and "
        "commits nothing.",
        "no answer that was given",
        f"{remedy}; run the stage again",
    )


AGAIN = "run it again: it goes on where it stopped"
FAULTS: dict[str, Fault] = {
    "disk_full": Fault(
        disk_faults.fill_disk,
        "the disk is full, at each stage",
        'The stage fails with "No space left on device", {failures} times in this run. Nothing of it is visible, '
        "and no staging folder stays.",
        "the stage's work since its last answer or checkpoint",
        f"make room and {AGAIN}",
    ),
    "read_only": Fault(
        disk_faults.read_only,
        "the data root is read-only",
        "`nlac iterate` ends with one message. `sql`, `verify`, `runs` and `explain` work.",
        "nothing",
        "name another data root with --data, or mount it writable",
    ),
    "two_iterations": Fault(
        process_faults.two_iterations,
        "two iterations of one run at once",
        "One runs. The other ends at once, and names the one that writes the run.",
        "nothing",
        "wait, or choose another run",
    ),
    "side_by_side": Fault(
        process_faults.side_by_side,
        "two runs side by side below one data root",
        "Both finish, each as it would alone.",
        "nothing",
        "none needed",
    ),
    "two_writers": Fault(
        process_faults.two_writers,
        "two writers of one fingerprint",
        "One computes the stage, the other waits. Of two that commit one folder, one does, and the other is refused: "
        "the two made {commits of each writer[0]} and {commits of each writer[1]} of the commits.",
        "nothing",
        "none needed",
    ),
    "clock": Fault(
        move_clock,
        "the clock is moved by an hour",
        "Leases on model servers stay: they name kernel ticks and the boot, no time of day.",
        "nothing",
        "none needed",
    ),
    **{f"http_{fault.replace(' ', '_')}": _http(fault) for fault in FAULTS_OF_HTTP},
    "services_away": Fault(
        partial(stack_faults.disturbed, fault=stack_faults.take_away),
        "in the middle of a run, Prefect's server is killed and MLflow's store is away",
        "The supervisor starts the server again, which answers after {seconds to the server's answer} s. The stage "
        "goes on meanwhile, and the run finishes, with a warning for each record that MLflow can't take.",
        "records in MLflow alone; the store has all of it",
        "put MLflow's store back: the next run that finds a stage committed logs it",
    ),
    "databases_locked": Fault(
        partial(stack_faults.disturbed, fault=stack_faults.lock_databases),
        "the SQLite databases of Prefect and MLflow are locked for 60 s",
        "The stage goes on, its states are told late, and the run finishes.",
        "at most records in MLflow, with a warning; the store has all of it",
        "none needed: the next run that finds a stage committed logs it",
    ),
}


def make(name: str) -> dict[str, Any]:
    """Make a fault, and give what is kept of it."""
    began = time.monotonic()
    with TemporaryDirectory(prefix="nlac-fault-") as folder:
        try:
            found, passed = FAULTS[name].make(Path(folder)), True
        except disk_faults.NoMount as reason:
            found, passed = {"skipped": str(reason)}, False
        except Exception as error:  # noqa: BLE001 - a fault that was not survived is the result
            traceback.print_exc()
            found, passed = {"failed": f"{type(error).__name__}: {error}"[:2000]}, False
    return {
        "survived": passed,
        "seconds": round(time.monotonic() - began, 1),
        "machine": machine(),
        "commit": commit(),
        "date": date.today().isoformat(),
        "found": found,
    }


def table(results: dict[str, Any]) -> str:
    """What each fault does, as Markdown, of those that were made and survived."""
    rows = ["| fault | what happens | what is lost | what to do |", "|---|---|---|---|"]
    for name, fault in FAULTS.items():
        made = results.get(name)
        if made is None or not made["survived"]:
            said = made["found"].get("skipped") or made["found"].get("failed") if made else "was not made"
            rows.append(f"| {fault.what} | **not shown:** {said} | | |")
            continue
        happens = fault.happens.format_map(made["found"])
        rows.append(f"| {fault.what} | {happens} | {fault.lost} | {fault.remedy} |")
    made = [of for of in results.values() if of["survived"]]
    when = ", ".join(sorted({f"{of['machine']}, commit {of['commit']}" for of in made}))
    return "\n".join([*rows, "", f"Made by `python -m benchmarks.reliability.faults` ({when})."])


def main(
    names: Annotated[list[str] | None, typer.Argument(help=f"of {', '.join(FAULTS)}; else all")] = None,
    out: Annotated[Path, typer.Option(help="folder of the result")] = FOLDER,
) -> None:
    """Make faults, and write faults.json after each."""
    path = out / RESULT
    results = json.loads(path.read_text()) if path.exists() else {}
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    out.mkdir(parents=True, exist_ok=True)
    chosen = names or list(FAULTS)
    for name in chosen:
        results[name] = make(name)
        ordered = {known: results[known] for known in FAULTS if known in results}
        replace_text(path, json.dumps(ordered, indent=1, ensure_ascii=False) + "\n")
        print(f"{name}: {'survived' if results[name]['survived'] else results[name]['found']}, "
              f"{results[name]['seconds']} s", flush=True)  # fmt: skip
    if missed := [name for name in chosen if not results[name]["survived"]]:
        raise SystemExit(f"not survived: {', '.join(missed)}")


if __name__ == "__main__":
    typer.run(main)
