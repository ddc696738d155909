"""The process in which `nlac iterate` has its iteration run: its own, or the command that runs the deployment."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue

from flows.cli.display import Display
from flows.stack.api import ask
from flows.stack.environment import client_environment, service_environment, stack_dir
from flows.stack.private import make_stack_dir
from flows.stack.record import Stack
from schemas.load import PROJECT_ROOT
from schemas.shown import visible
from storage.files import make_folder

ENDING_SECONDS = 30.0
"""What an iteration of ours gets to end when it is interrupted."""

_PREFECT = (sys.executable, "-m", "prefect")


@contextmanager
def own_process(root: Path, api_url: str) -> Iterator[subprocess.Popen[str]]:
    """A process for the flow, which loads what it needs while the server at an address starts. It ends with the
    block."""
    make_stack_dir(root)
    make_folder(_log(root).parent)
    with _log(root).open("ab") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.deployments.here"],
            cwd=PROJECT_ROOT, env=service_environment(root, api_url), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=sink, text=True, start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        _end(process)


def _log(root: Path) -> Path:
    return stack_dir(root) / "logs" / "iteration.log"


def _end(process: subprocess.Popen[str]) -> None:
    """End the flow's process; it ends its stage, and tells Prefect so."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(ENDING_SECONDS)
    process.kill()


def run_in_own_process(
    process: subprocess.Popen[str], root: Path, stack: Stack, parameters: dict[str, object], display: Display
) -> str | None:
    """Have the process run the flow; gives why it failed."""
    display.show(f"Computing all stages in one process; {stack.ui_url} shows the flow run meanwhile.")
    said: list[str] = []
    try:
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin:
            process.stdin.write(json.dumps(parameters) + "\n")
        with display:
            said += _lines(process, display)
    except BaseException:
        _end(process)  # before the server
        raise
    if process.wait() == 0:
        return None
    return visible("\n".join(said)) or f"Its process ended with {process.returncode}; see {_log(root)}"


def run_deployment(root: Path, stack: Stack, parameters: dict[str, object], display: Display) -> str | None:
    """Run the deployment and watch it; gives why it failed."""
    command = ("deployment", "run", "nlac/iteration", "--watch")
    display.show(f"Running: prefect {' '.join(command)}")
    environment = {**client_environment(root, stack.api_url), "COLUMNS": "2000"}
    process = subprocess.Popen(
        [*_PREFECT, *command, "--params", json.dumps(parameters)],
        cwd=PROJECT_ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    flow_run = ""
    try:
        with display:
            for line in _lines(process, display):
                display.show(line)
                if "UUID:" in line:
                    flow_run = line.split("UUID:")[1].strip()
    except BaseException:
        process.kill()
        if flow_run:
            subprocess.run(
                [*_PREFECT, "flow-run", "cancel", flow_run], cwd=PROJECT_ROOT, env=environment, check=False,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        raise
    return why_failed(stack, flow_run) if process.wait() else None


def _lines(process: subprocess.Popen[str], display: Display) -> Iterator[str]:
    """A command's output line by line; the display is refreshed meanwhile."""
    queue: SimpleQueue[str | None] = SimpleQueue()

    def read() -> None:
        for line in process.stdout or ():
            queue.put(line.rstrip())
        queue.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = queue.get(timeout=0.5)
        except Empty:
            display.refresh()
            continue
        if line is None:
            display.refresh(last=True)
            return
        yield line


def why_failed(stack: Stack, flow_run: str) -> str:
    """Why the flow run failed, in its own words: the stage and the commands that retry it."""
    if not flow_run:
        return "Prefect did not accept the run; its message stands above."
    try:
        return visible(str(ask(stack, f"/flow_runs/{flow_run}")["state"]["message"]))
    except OSError as error:
        return f"The Prefect server does not answer any more ({error})."
