"""Live progress of an iteration's stages in the terminal, from their progress files."""

import time
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from flows.deployments.progress import ProgressFile
from schemas.shown import visible
from tasks.runtime.progress import ProgressState, progress_line

PLAIN_SECONDS = 5.0
EVENT = "●"  # begins a line about an event of Prefect


class Display:
    """Bars on a terminal; elsewhere a plain line every PLAIN_SECONDS.

    Args:
        console: where to print, as the text stands.
        root: the data root.
        run: the run shown.
        stages: its stages, in order.
        since: when it was started (seconds since the epoch); older progress is not shown.
    """

    def __init__(self, console: Console, root: Path, run: str, stages: list[str], since: float) -> None:
        self.console, self.root, self.run, self.stages, self.since = console, root, run, stages, since
        bar = BarColumn(bar_width=24)
        self._bars = Progress(
            TextColumn("{task.description:<20}"), bar, TextColumn("{task.fields[line]}"), console=console
        )
        self._tasks: dict[str, TaskID] = {}
        self._printed: dict[str, tuple[float, str]] = {}
        self._live = Live(self._bars, console=console, refresh_per_second=4) if console.is_terminal else None

    def __enter__(self) -> "Display":
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def show(self, line: str) -> None:
        """Print a line of Prefect's output, unless it is an event: the bars say what those say."""
        if not line.startswith(EVENT):
            self.console.print(visible(line), style="dim")

    def refresh(self, *, last: bool = False) -> None:
        """Show the stages' present progress."""
        for stage in self.stages:
            progress = ProgressFile.read(self.root, self.run, stage, self.since)
            if progress is None:
                continue
            if self._live:
                self._draw(stage, progress.state)
            else:
                self._print(stage, progress.state, last)

    def _draw(self, stage: str, state: ProgressState) -> None:
        if stage not in self._tasks:
            self._tasks[stage] = self._bars.add_task(stage, line="")
        self._bars.update(
            self._tasks[stage], completed=state.done, total=max(state.total, 1), line=progress_line(state)
        )

    def _print(self, stage: str, state: ProgressState, last: bool) -> None:
        line = progress_line(state)
        when, before = self._printed.get(stage, (0.0, ""))
        due = last or state.done >= state.total or time.monotonic() - when > PLAIN_SECONDS
        if line != before and due:
            self._printed[stage] = (time.monotonic(), line)
            self.console.print(f"{stage}: {line}")
