"""`nlac iterate`, behind `make iteration`: run one iteration, show its progress, sum it up."""

import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from flows.cli.display import Display
from flows.cli.iteration_process import own_process, run_deployment, run_in_own_process
from flows.cli.summary import retry_hint, summary
from flows.deployments.parameters import resolve
from flows.stack import control
from storage.store import Store
from tasks.pipeline.checks import check_config
from tasks.pipeline.registry import stages_of


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
    with ExitStack() as opened:
        processes: list[subprocess.Popen[str]] = []

        def begin(api_url: str) -> int:
            processes.append(opened.enter_context(own_process(root, api_url)))
            return processes[0].pid

        stack, own = opened.enter_context(control.used_stack(root, request.config, console.print, begin))
        display = Display(console, root, resolved.run, stages_of(resolved, number), started)
        if own:
            if not processes:
                begin(stack.api_url)
            reason = run_in_own_process(processes[0], root, stack, parameters, display)
        else:
            reason = run_deployment(root, stack, parameters, display)
    if reason is not None:
        console.print(f"\nThe iteration did not finish. {reason}", style="red")
        console.print(retry_hint(root, request.options, own))
        return 1
    summary(console, store, resolved, number, started, stack.ui_url)
    return 0
