"""A report as lines for the terminal, and as a page of Markdown for Prefect and MLflow."""

from collections.abc import Iterator
from typing import Any

from schemas.shown import markdown
from tasks.export.measured import Success
from tasks.export.report import Report

PLAYERS = {"nothing": "doing nothing", "random": "random actions"}


def outcome_lines(report: Report) -> list[str]:
    """What came of an iteration, a line each: success, what was distilled, leaks, malformed texts, alarms.

    The lines hold what models wrote (actions). Show them through `schemas.shown`.
    """
    return [_success_line(report), *_counts(report), *(f"ALARM: {a.name}: {a.said}" for a in report.alarms)]


def rate(success: Success) -> str:
    """A success rate with its interval and its episodes."""
    interval = "" if success.low is None else f" ({success.low:.3f} to {success.high:.3f})"
    return f"{success.rate:.3f}{interval} over {success.episodes} episodes"


def _success_line(report: Report) -> str:
    if report.success is None:
        said = "success: not evaluated in this iteration"
        return said if report.before is None else f"{said}; {_last(report.before)}"
    said = f"success: {rate(report.success)}"
    if report.baseline is not None:
        player, value = report.baseline
        said += f"; {PLAYERS.get(player, player)}: {value:.3f}"
    return f"{said}; {_last(report.before)}" if report.before else f"{said}; no iteration before"


def _last(before: Success) -> str:
    return f"iteration {before.iteration}: {rate(before)}"


def _counts(report: Report) -> Iterator[str]:
    if report.proposals is not None:
        yield f"distilled: {report.distilled} of {report.proposals} proposals, {report.unchanged} of them unchanged"
    if report.thoughts is not None:
        yield f"leaked: {report.leaked} of {report.thoughts} thoughts, before correction"
    if report.texts is not None:
        yield f"malformed: {report.malformed} of {report.texts} texts"


def terminal_page(report: Report) -> str:
    """The whole report as text. It holds what models wrote: print it through `schemas.shown.visible`."""
    lines = [f"Iteration {report.iteration} of run '{report.run}'", "", *outcome_lines(report)]
    if report.alarms:
        lines += ["", "What to look at"]
        lines += [f"  {alarm.name}: {alarm.look}" for alarm in report.alarms]
    for table in report.tables:
        cells = [table.columns, *([_cell(value) for value in row] for row in table.rows)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(table.columns))]
        lines += ["", table.title]
        lines += [
            "  " + "  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)).rstrip() for row in cells
        ]
    return "\n".join(lines)


def markdown_page(report: Report) -> str:
    """The whole report as Markdown. What models wrote is escaped."""
    parts = [f"## {markdown(f'Iteration {report.iteration} of run {report.run}')}"]
    parts.append("\n".join(f"- {markdown(line)}" for line in outcome_lines(report)))
    if report.alarms:
        look = (f"- {markdown(alarm.name)}: {markdown(alarm.look)}" for alarm in report.alarms)
        parts.append("### What to look at\n\n" + "\n".join(look))
    for table in report.tables:
        rows = ["| " + " | ".join(markdown(_cell(value)) for value in row) + " |" for row in table.rows]
        head = "| " + " | ".join(map(markdown, table.columns)) + " |"
        parts.append(
            "\n".join([f"### {markdown(table.title)}", "", head, "|---" * len(table.columns) + "|", *rows])
        )
    return "\n\n".join(parts) + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) and abs(value) < 1000 else str(value)
