"""What every benchmark writes: `benchmarks/out/NAME.json` with a list `checks` of {name, value, goal, ok}."""

import json
import operator
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

OUT = Path(__file__).parent / "out"
COMPARE = {">=": operator.ge, "<=": operator.le, "==": operator.eq}


@dataclass(frozen=True)
class Check:
    """One figure held to its bar."""

    name: str
    value: float
    goal: str  # for instance ">= 0.85"
    ok: bool


def check(name: str, value: float, relation: Literal[">=", "<=", "=="], bar: float) -> Check:
    """Hold a figure to a bar; a figure that is not a number misses it."""
    return Check(name, round(float(value), 4), f"{relation} {bar:g}", bool(COMPARE[relation](value, bar)))


def machine() -> str:
    """What the figures were measured on, in a line, with the date."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        named = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line
        ]
        model = f"{len(named)} cores {named[0]}" if named else model
    return f"{model}, Python {platform.python_version()}, {date.today().isoformat()}"


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
    Console().print(table)


def print_figures(title: str, figures: Mapping[str, Mapping[str, float]]) -> None:
    """Figures without bars: a column each of the things measured."""
    table = Table("figure", *figures, title=title)
    for name in next(iter(figures.values())):
        table.add_row(name, *(f"{values[name]:.6g}" for values in figures.values()))
    Console().print(table)
