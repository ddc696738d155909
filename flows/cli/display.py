"""Live progress of an iteration's stages in the terminal, from the small files that the stages keep."""

import time
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from flows.deployments.progress import ProgressFile, progress_line

PLAIN_SECONDS = 5.0


class Display:
    """Bars on a terminal, a plain line now and then elsewhere.

    Args:
        console: where to.
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
        self._said: dict[str, tuple[float, str]] = {}
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
        """A line of Prefect's own account; its heartbeats are left out."""
        if "flow-run.heartbeat" not in line:
            self.console.print(line, style="dim", markup=False, highlight=False, soft_wrap=True)

    def refresh(self, *, last: bool = False) -> None:
        """Look what the stages say now."""
        for stage in self.stages:
            progress = ProgressFile.read(self.root, self.run, stage, self.since)
            if progress is None:
                continue
            if self._live:
                self._draw(stage, progress)
            else:
                self._tell(stage, progress, last)

    def _draw(self, stage: str, progress: ProgressFile) -> None:
        state = progress.state
        if stage not in self._tasks:
            self._tasks[stage] = self._bars.add_task(stage, line="")
        self._bars.update(
            self._tasks[stage], completed=state.done, total=max(state.total, 1), line=progress_line(state)
        )

    def _tell(self, stage: str, progress: ProgressFile, last: bool) -> None:
        line = progress_line(progress.state)
        when, before = self._said.get(stage, (0.0, ""))
        ended = progress.state.done >= progress.state.total
        if line != before and (last or ended or time.monotonic() - when > PLAIN_SECONDS):
            self._said[stage] = (time.monotonic(), line)
            self.console.print(f"{stage}: {line}", highlight=False, markup=False)
