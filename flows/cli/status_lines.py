"""What `nlac status` writes for people."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flows.cli.standing_models import RunStanding


def warning(run: "RunStanding", still_after: float) -> str | None:
    """What is said of a run that runs and has not moved for `still_after` seconds."""
    if run.state == "running" and run.still_seconds is not None and run.still_seconds > still_after:
        return (
            f"nothing has moved for {_duration(run.still_seconds)}; the stage's log is under .logs of the run"
        )
    return None


def lines(found: dict[str, Any], still_after: float) -> Iterator[str]:
    """All that was found, a line each."""
    stack, flow_runs = found["stack"], found["flow_runs"]
    yield f"stack: {stack.ui_url}" if stack else "stack: not up"
    for one in flow_runs:
        yield f"  {one.state_name}: {one.name}"
    for gpu in found["gpus"]:
        busy, used, total = (
            "?" if gpu[name] is None else f"{gpu[name]:.0f}"
            for name in ("busy_percent", "used_mb", "total_mb")
        )
        yield f"GPU {gpu['name']}: {busy}% busy, {used} of {total} MB"
    if (failed := found["failed"]) is not None:
        yield f"failed at its start: {failed.name}: {failed.state.message}"
    if not found["runs"]:
        yield f"no run yet under {found['root']}: begin one with `nlac iterate`"
    for run in found["runs"]:
        yield ""
        yield from _run_lines(run, still_after)


def _run_lines(run: "RunStanding", still_after: float) -> Iterator[str]:
    from tasks.runtime.progress import progress_line

    of = "" if run.last_iteration is None else f" of 0 to {run.last_iteration}"
    yield f"run '{run.run}', iteration {run.iteration}{of}: {run.state}" + (
        f", by {run.holder}" if run.holder else ""
    )
    if (stands := warning(run, still_after)) is not None:
        yield f"  WARNING: {stands}"
    for stage in run.stages:
        said = {
            "committed": f"{_duration(stage.seconds)}",
            "running": progress_line(stage.progress) if stage.progress else "starting",
            "waiting": f"took {_duration(stage.seconds_left)} before"
            if stage.seconds_left is not None
            else "",
            "failed": "",
        }[stage.state]
        yield f"  {stage.stage:<20} {stage.state:<10} {said}".rstrip()
        if stage.shards is not None:
            yield f"  {'':<20} {stage.shards.line}"
    if run.state == "running":
        here = run.stage.seconds_left if run.stage else None
        yield (
            f"  left: stage {_duration(here)}, iteration {_duration(run.seconds_left)}, "
            f"run {_duration(run.run_seconds_left)}"
        )
    if run.loss is not None:
        yield f"  loss: {run.loss:.4f}"
    for role, cost in run.roles.items():
        yield (
            f"  {role:<20} {cost.texts} texts, {cost.scored} scored, {cost.prompt_tokens} tokens read, "
            f"{cost.completion_tokens} written, {cost.seconds:.1f} s"
        )
    for what, counts in (
        ("requests that failed or were repeated", run.faults), ("failed attempts", run.attempts), ("rows", run.rows),
    ):  # fmt: skip
        if counts:
            yield f"  {what}: " + ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    if run.failure is not None:
        at = f" at {run.failure.stage}" if run.failure.stage else ""
        yield f"  stopped{at}: {run.failure.reason}"
        yield from (f"  to go on: {command}" for command in run.failure.commands)


def _duration(seconds: float | None) -> str:
    """Seconds as people say them; None is not known."""
    if seconds is None:
        return "unknown"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
