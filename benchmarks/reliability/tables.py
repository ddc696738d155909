"""A run's tables beside those of an undisturbed run.

    python -m benchmarks.reliability.tables CONFIG ROOT ITERATIONS

computes the undisturbed run: in one process, without Prefect.
"""

import asyncio
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from schemas.load import load_config
from storage.store import Committed, Store
from tasks.imports import allow_imports
from tasks.pipeline.iterations import run_iteration
from tasks.pipeline.registry import STAGES


@dataclass(frozen=True)
class Difference:
    """How a run's tables and adapters differ from the undisturbed ones.

    Attributes:
        tables: how many were compared.
        differing: names of those whose digests differ, or that only one side has.
        lost: rows that only the undisturbed run has.
        surplus: rows that only the other has, doubles among them.
    """

    tables: int
    differing: list[str]
    lost: int
    surplus: int


def compare(disturbed: Store, undisturbed: Store, run: str) -> Difference:
    """Compare all that is current in a run, digest for digest."""
    ours, theirs = _digests(disturbed, run), _digests(undisturbed, run)
    differing = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
    lost = surplus = 0
    for name in differing:
        mine, other = _rows(disturbed, run, name), _rows(undisturbed, run, name)
        lost += (other - mine).total()
        surplus += (mine - other).total()
    return Difference(len(ours.keys() | theirs.keys()), differing, lost, surplus)


def _committed(store: Store, run: str) -> dict[str, Committed]:
    """What is current, by 'stage@iteration'."""
    found = {
        f"{stage}@{number}": store.committed(run, stage, number)
        for number in store.iterations(run)
        for stage in STAGES
    }
    return {name: made for name, made in found.items() if made is not None}


def _digests(store: Store, run: str) -> dict[str, str]:
    digests: dict[str, str] = {}
    for part, made in _committed(store, run).items():
        digests |= {f"{part}.{name}": table.digest for name, table in made.manifest.tables.items()}
        digests |= {f"{part}/{name}": adapter.digest for name, adapter in made.manifest.adapters.items()}
    return digests


def _rows(store: Store, run: str, name: str) -> Counter[str]:
    """The rows of a table, as often as it has them; none where it is not there, nor of an adapter."""
    part, _, table = name.partition(".")
    made = _committed(store, run).get(part)
    if made is None or table not in made.manifest.tables:
        return Counter()
    return Counter(map(repr, made.scan(table).collect().iter_rows()))


async def undisturbed(config: Path, root: Path, iterations: int) -> None:
    """Run iterations up to this number in this process."""
    resolved, store = load_config(config), Store(root)
    while len(store.iterations(resolved.run)) < iterations or any(
        store.current(resolved.run, number).state != "finished" for number in store.iterations(resolved.run)
    ):
        await run_iteration(store, resolved)


if __name__ == "__main__":
    allow_imports(["tests"])
    asyncio.run(undisturbed(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))
