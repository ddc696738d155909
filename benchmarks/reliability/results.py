"""What a run of the soak showed: a line for each kill while it goes on, and a file that is committed in the end."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.checks import processor
from benchmarks.learning.result_files import commit
from schemas.load import PROJECT_ROOT
from storage.files import replace_text

RESULTS = PROJECT_ROOT / "docs" / "results" / "soak"


@dataclass
class Kill:
    """One kill.

    Attributes:
        number: from 0.
        victim: kind of the process.
        stage: that was next to be committed.
        iteration: of that.
        seconds: from the kill until that stage was committed; None where the harness itself ended before.
        resumed: how often the iteration had to be run again for that.
        restarted: how often the stack had to be started again.
        survived: that sufficed. False where the run stood still until the stack was stopped and started.
    """

    number: int
    victim: str
    stage: str
    iteration: int
    seconds: float | None = None
    resumed: int = 0
    restarted: int = 0
    survived: bool = True


@dataclass(frozen=True)
class Result:
    """One run, whole.

    Attributes:
        run: its name, which says who played the roles.
        seed: of the kills.
        iterations: that were finished.
        minutes: of the harness, the undisturbed run left out.
        between: median seconds between two commits with no kill in between.
        tables: tables and adapters compared with an undisturbed run.
        differing: those that differ.
        lost, surplus: rows missing, and rows too many.
        faults: what `nlac verify` finds.
        staging: staging folders left.
        orphans: processes left after `nlac down`.
        left: journals and checkpoints of committed stages, which `nlac gc` removes.
        machine, commit, date: what it was measured with.
        kills: all of them.
    """

    run: str
    seed: int
    iterations: int = 0
    minutes: float = 0.0
    between: float = 0.0
    tables: int = 0
    differing: list[str] = field(default_factory=list)
    lost: int = 0
    surplus: int = 0
    faults: list[str] = field(default_factory=list)
    staging: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=dict)
    commit: str = ""
    date: str = ""
    kills: list[Kill] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Nothing was lost, doubled or left behind, and no kill needed more than running again."""
        found = (self.differing, self.lost, self.surplus, self.faults, self.staging, self.orphans)
        return not any(found) and all(kill.survived for kill in self.kills)


def read_kills(path: Path) -> list[Kill]:
    """The kills of a run so far, by number; the last line of a number counts."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    known = {kill.number: kill for kill in (Kill(**json.loads(line)) for line in lines)}
    return [known[number] for number in sorted(known)]


def note_kill(path: Path, kill: Kill) -> None:
    """Add a line for a kill: when it is done, and again when it has been recovered from."""
    with path.open("a", encoding="utf-8") as notes:
        notes.write(json.dumps(asdict(kill)) + "\n")


def write_result(folder: Path, result: Result) -> Path:
    """Write a result as of this machine, program and day."""
    _, cores, name = processor()
    made = replace(
        result, machine={"processor": name, "cores": cores}, commit=commit(), date=date.today().isoformat()
    )
    path = folder / f"{made.run}-{made.seed}.json"
    replace_text(path, json.dumps(asdict(made), indent=1) + "\n")
    return path


def read_results(folder: Path) -> list[Result]:
    """All results of a folder, by name."""
    found = (json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json")))
    return [Result(**{**content, "kills": [Kill(**row) for row in content["kills"]]}) for content in found]


def by_victim(kills: Iterable[Kill]) -> list[dict[str, float | str]]:
    """A line for each kind of victim, and one for all: kills, those survived, runs again, starts again, seconds."""
    kills = list(kills)
    kinds = sorted({kill.victim for kill in kills})
    return [
        _line(kind, [k for k in kills if k.victim == kind]) for kind in kinds
    ] + [_line("all", kills)]  # fmt: skip


def _line(name: str, kills: Sequence[Kill]) -> dict[str, float | str]:
    seconds = [kill.seconds for kill in kills if kill.seconds is not None]
    return {
        "victim": name,
        "kills": len(kills),
        "survived": sum(kill.survived for kill in kills),
        "run again": sum(kill.resumed for kill in kills),
        "stack started again": sum(kill.restarted for kill in kills),
        "mean s to recover": round(mean(seconds), 1) if seconds else "",
    }


def by_stage(kills: Iterable[Kill]) -> dict[str, Counter[str]]:
    """Stage -> kills by victim."""
    found: dict[str, Counter[str]] = {}
    for kill in kills:
        found.setdefault(kill.stage, Counter())[kill.victim] += 1
    return found
