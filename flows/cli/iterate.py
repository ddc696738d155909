"""`nlac iterate`, behind `make iteration`: run one iteration, show its progress, sum it up."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from rich.console import Console

from flows.cli.display import Display
from flows.cli.summary import retry_hint, summary
from flows.deployments.parameters import resolve
from flows.stack import control
from flows.stack.api import ask
from flows.stack.environment import client_environment
from flows.stack.record import Stack
from schemas.load import PROJECT_ROOT
from schemas.shown import visible
from storage.store import Store
from tasks.pipeline.checks import check_config
from tasks.pipeline.registry import stages_of

_PREFECT = (sys.executable, "-m", "prefect")


@dataclass(frozen=True)
class Request:
    """What the user asks for; `config` is an absolute path."""

    config: Path | None
    run: str | None
    iteration: int | None
    force: bool
    seed: int | None

    @property
    def options(self) -> dict[str, object]:
        """The given options that running again needs too."""
        return {"config": self.config, "run": self.run, "seed": self.seed}


def run_and_show(root: Path, request: Request) -> int:
    """Run an iteration and show it.

    Returns:
        The exit code: 0, or 1 when a stage failed.

    Raises:
        ConfigError: the configuration can't be used; nothing is created.
        StackError: the stack did not start.
    """
    config = str(request.config) if request.config else None
    store = Store(root)
    resolved, number = resolve(store, request.run, config, request.iteration, request.seed, stage_alone=False)
    check_config(resolved, root)
    for stopping in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(stopping, lambda *_: sys.exit(1))  # so that what we started is stopped
    console = Console(markup=False, highlight=False, soft_wrap=True)
    parameters: dict[str, object] = {
        "run": resolved.run,
        "config": config,
        "iteration": number,
        "force": request.force,
        "seed": request.seed,
    }
    started = time.time()
    with control.used_stack(root, request.config, console.print) as (stack, own):
        parameters["here"] = own  # no other worker could take a stage meanwhile
        command = ("deployment", "run", "nlac/iteration", "--watch")
        console.print(f"Running: prefect {' '.join(command)}")
        environment = {**client_environment(root, stack.api_url), "COLUMNS": "2000"}
        process = subprocess.Popen(
            [*_PREFECT, *command, "--params", json.dumps(parameters)],
            cwd=PROJECT_ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        flow_run = ""
        try:
            with Display(console, root, resolved.run, stages_of(resolved, number), started) as display:
                for line in _lines(process, display):
                    if "UUID:" in line:
                        flow_run = line.split("UUID:")[1].strip()
            failed = process.wait() != 0
            reason = _why(stack, flow_run) if failed else ""
        except BaseException:
            process.kill()
            if flow_run and (
                not own or control.users(root) > 1
            ):  # else the stack ends now, and the run with it
                subprocess.run(
                    [*_PREFECT, "flow-run", "cancel", flow_run], cwd=PROJECT_ROOT, env=environment, check=False,
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
                )  # fmt: skip
            raise
    if failed:
        console.print(f"\nThe iteration did not finish. {reason}", style="red")
        console.print(retry_hint(root, request.options, own))
        return 1
    summary(console, store, resolved, number, started, stack.ui_url)
    return 0


def _lines(process: subprocess.Popen[str], display: Display) -> Iterator[str]:
    """The command's output line by line; the display is refreshed meanwhile."""
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
        display.show(line)
        yield line


def _why(stack: Stack, flow_run: str) -> str:
    """Why the flow run failed, in its own words: the stage and the commands that retry it."""
    if not flow_run:
        return "Prefect did not accept the run; its message stands above."
    try:
        return visible(str(ask(stack, f"/flow_runs/{flow_run}")["state"]["message"]))
    except OSError as error:
        return f"The Prefect server does not answer any more ({error})."
