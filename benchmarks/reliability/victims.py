"""The processes of a stack that this process started, by what they are, and the killing of one.

A victim is a descendant of this process, which adopts orphans (a subreaper), and carries the stack's mark. So no other
process can ever be meant.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import psutil

from flows.stack.environment import STACK_MARK

MODEL_KINDS = ("model server", "model supervisor")
KINDS = ("stage", "iteration", "worker", "server", "supervisor", *MODEL_KINDS)
"""A stage's process, the iteration's, a worker, Prefect's server, the stack's supervisor, a model server (vLLM), the
supervisor of that."""

_COMMANDS = {
    "flows.stack.supervisor": "supervisor",
    "server start": "server",
    "prefect.server.api.server:create_app": "server",
    "worker start": "worker",
    "vllm.entrypoints.openai.api_server": "model server",
    "tasks.engines.vllm.server_supervisor": "model supervisor",
    "prefect.engine": "stage",
    "benchmarks.reliability.tables": "stage",  # without Prefect it computes all of them
}
_FLOWS = ("iteration", "training")  # deployments whose process is no stage's


def kind_of(command: list[str], environment: dict[str, str]) -> str | None:
    """What a process of a stack is; None for those that nobody kills by purpose, such as a stage's children."""
    line = " ".join(command)
    # A model server's supervisor names the server's command at the end of its own, so the first found counts.
    found = sorted((line.find(text), kind) for text, kind in _COMMANDS.items() if text in line)
    if not found:
        return None
    kind = found[0][1]
    return "iteration" if kind == "stage" and environment.get("PREFECT__DEPLOYMENT_NAME") in _FLOWS else kind


def own_processes() -> list[psutil.Process]:
    """Living descendants of this process."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def victims(root: Path) -> Iterator[tuple[str, psutil.Process]]:
    """(kind, process) of all that could be killed of a data root's stack, this process's descendants alone."""
    for process in own_processes():
        with suppress(psutil.Error):
            environment = process.environ()
            kind = kind_of(process.cmdline(), environment)
            marked = environment.get(STACK_MARK) == str(root)
            # The supervisor makes the mark for others and has none itself; its command names the data root.
            if kind is not None and (marked or (kind == "supervisor" and str(root) in process.cmdline())):
                yield kind, process


def kill_one(root: Path, kind: str, chance: Random) -> bool:
    """SIGKILL a process of a kind; False where there is none."""
    found = sorted((p for k, p in victims(root) if k == kind), key=lambda process: process.pid)
    if not found:
        return False
    with suppress(psutil.NoSuchProcess):
        chance.choice(found).kill()
        return True
    return False


def reap() -> None:
    """Take note of the end of adopted processes, as init would."""
    for process in psutil.Process().children():
        with suppress(psutil.NoSuchProcess, ChildProcessError):
            if process.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(process.pid, os.WNOHANG)
