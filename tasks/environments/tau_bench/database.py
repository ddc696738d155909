"""A domain's database, loaded once and lent to any number of episodes.

An episode looks up a few of thousands of records. It therefore shares the loaded records and copies one at its first
lookup. The digest reuses the cached texts of all other records.
"""

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from functools import cached_property
from hashlib import sha256
from typing import Any


class Table(dict[str, Any]):
    """Records by key, shared with the loaded table until they are looked up.

    A lookup (`table[key]`, `get`) returns a copy that belongs to this table. Iteration returns shared records, which
    must not be changed. The package's tools change only records that they looked up; `TauBench.validate` checks that.
    """

    def __init__(self, shared: Mapping[str, Any]) -> None:
        super().__init__(shared)
        self.own: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        if key not in self.own:
            self[key] = deepcopy(super().__getitem__(key))
        return super().__getitem__(key)

    def __setitem__(self, key: str, record: Any) -> None:
        self.own.add(key)
        super().__setitem__(key, record)

    def get(self, key: str, default: Any = None) -> Any:
        """As `dict.get`, through the lookup above."""
        try:
            return self[key]
        except KeyError:
            return default


class Snapshot:
    """The tables of a domain at the start of every episode.

    Args:
        tables: table name -> key -> record; never changed.
        hashable: gives a record a form whose `str` depends only on its content (the package's `to_hashable`).
    """

    def __init__(self, tables: Mapping[str, Mapping[str, Any]], hashable: Callable[[Any], Any]) -> None:
        self._tables = tables
        self._hashable = hashable

    @cached_property
    def _texts(self) -> dict[str, dict[str, str]]:
        return {
            name: {key: self._text(r) for key, r in table.items()} for name, table in self._tables.items()
        }

    def _text(self, record: Any) -> str:
        return str(self._hashable(record))

    def lend(self) -> dict[str, Table]:
        """Tables that one episode may change."""
        return {name: Table(table) for name, table in self._tables.items()}

    def digest(self, database: Mapping[str, Table]) -> str:
        """sha256 (hex) of lent tables: equal to the package's `consistent_hash(to_hashable(database))`, without
        converting records that were not looked up."""
        tables = []
        for name, table in sorted(database.items()):
            texts = self._texts[name]
            rows = (
                _tuple((repr(key), self._text(table[key]) if key in table.own else texts[key]))
                for key in sorted(table)
            )
            tables.append(_tuple((repr(name), _tuple(rows))))
        return sha256(_tuple(tables).encode("utf-8")).hexdigest()

    def intact(self) -> bool:
        """Whether the shared records are unchanged since the first digest."""
        return all(
            self._texts[name][key] == self._text(record)
            for name, table in self._tables.items()
            for key, record in table.items()
        )


def _tuple(parts: Iterable[str]) -> str:
    """The repr of a tuple, from the reprs of its elements."""
    listed = list(parts)
    return f"({listed[0]},)" if len(listed) == 1 else f"({', '.join(listed)})"
