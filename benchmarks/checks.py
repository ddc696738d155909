"""What every benchmark prints, and writes to `benchmarks/out/NAME.json`: a list `checks` of {name, value, goal, ok}."""

import json
import operator
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

OUT = Path(__file__).parent / "out"
BEGAN = time.monotonic()  # of the command, whose first imports these are
CONSOLE = Console(width=160)  # also where the output goes to a file
COMPARE = {">": operator.gt, ">=": operator.ge, "<=": operator.le, "==": operator.eq}


@dataclass(frozen=True)
class Check:
    """One figure held to its bar."""

    name: str
    value: float
    goal: str  # for instance ">= 0.85"
    ok: bool


def check(name: str, value: float, relation: Literal[">", ">=", "<=", "=="], bar: float) -> Check:
    """Hold a figure to a bar; a figure that is not a number misses it."""
    return Check(name, round(float(value), 4), f"{relation} {bar:g}", bool(COMPARE[relation](value, bar)))


def processor() -> tuple[frozenset[str], int, str]:
    """The processor's flags, its cores, its name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    told = [line.split(":", 1) for line in lines if ":" in line]
    names = [value.strip() for key, value in told if key.strip() == "model name"]
    flags = next((value.split() for key, value in told if key.strip() == "flags"), [])
    name = names[0] if names else platform.processor() or platform.machine()
    return frozenset(flags), len(names) or os.cpu_count() or 1, name


def machine() -> str:
    """What the figures were measured on, in a line, with the date."""
    _, cores, name = processor()
    return f"{cores} cores {name}, Python {platform.python_version()}, {date.today().isoformat()}"


def write_checks(name: str, checks: Sequence[Check], **more: Any) -> Path:
    """Write (or extend) `benchmarks/out/NAME.json`; checks of the same name are replaced, others stay, and `measured`
    says of each where and when it was measured."""
    path = OUT / f"{name}.json"
    OUT.mkdir(exist_ok=True)
    content = json.loads(path.read_text()) if path.exists() else {"checks": []}
    new = {c.name for c in checks}
    kept = [c for c in content["checks"] if c["name"] not in new]
    measured = content.get("measured", {}) | dict.fromkeys([c.name for c in checks], machine())
    content |= {
        "machine": machine(),
        **more,
        "measured": measured,
        "checks": kept + [asdict(c) for c in checks],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


def print_checks(title: str, checks: Sequence[Check]) -> None:
    """One table, the bar beside each figure."""
    table = Table("check", "value", "bar", "", title=title)
    for c in checks:
        table.add_row(c.name, f"{c.value:g}", c.goal, "ok" if c.ok else "[red]missed[/red]")
    CONSOLE.print(table)


def print_figures(title: str, figures: Mapping[str, Mapping[str, float | str | None]]) -> None:
    """Figures without bars: of things measured and figures, the more numerous are the rows."""
    names = list(next(iter(figures.values())))
    by_thing = len(figures) > len(names)
    columns, rows = (names, list(figures)) if by_thing else (list(figures), names)
    table = Table("", *columns, title=title)
    for row in rows:
        values = (figures[row][column] if by_thing else figures[column][row] for column in columns)
        table.add_row(row, *("" if v is None else v if isinstance(v, str) else f"{v:.6g}" for v in values))
    CONSOLE.print(table)


def finish(name: str, title: str, checks: Sequence[Check], **more: Any) -> None:
    """Print the checks, write them, and end the command with an error where a bar is missed.

    Args:
        name: of the file in `benchmarks/out`.
        title: of the table.
        checks: figures held to their bars; there may be none.
        more: what else the file holds.

    Raises:
        SystemExit: a bar is missed; it is named.
    """
    if checks:
        print_checks(f"{title} ({machine()})", checks)
    print(f"{(time.monotonic() - BEGAN) / 60:.1f} min in all")
    print(f"written to {write_checks(name, checks, **more)}")
    if missed := [c.name for c in checks if not c.ok]:
        raise SystemExit(f"bars missed: {', '.join(missed)}")
