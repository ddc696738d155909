"""A domain's database, loaded once and lent to any number of episodes.

An episode looks at a handful of thousands of records. So it shares those of the loaded tables, and copies one when it
first looks it up by its key; the digest is made of texts that are kept for all the others.
"""

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from functools import cached_property
from hashlib import sha256
from typing import Any


class Table(dict[str, Any]):
    """Records by key, shared with the loaded table until they are looked up.

    Looking a record up (`table[key]`, `get`) gives a copy that belongs to this table. Iterating gives shared records,
    which must only be read: the package's tools change only what they have looked up, and `TauBench.validate` finds out
    if that should change.
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
        """As of any dict, by way of the lookup above."""
        try:
            return self[key]
        except KeyError:
            return default


class Snapshot:
    """The tables of a domain as every episode finds them.

    Args:
        tables: table name -> key -> record; never changed.
        hashable: a record in a form whose `str` depends on its content alone (the package's `to_hashable`).
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
        """The tables for one episode to change."""
        return {name: Table(table) for name, table in self._tables.items()}

    def digest(self, database: Mapping[str, Table]) -> str:
        """sha256 (hex) of lent tables: what the package's `consistent_hash(to_hashable(database))` gives, without
        going through the records that were not looked up."""
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
        """Whether the shared records are still what they were when the first digest was made."""
        return all(
            self._texts[name][key] == self._text(record)
            for name, table in self._tables.items()
            for key, record in table.items()
        )


def _tuple(parts: Iterable[str]) -> str:
    """How Python writes a tuple whose elements' texts are given."""
    listed = list(parts)
    return f"({listed[0]},)" if len(listed) == 1 else f"({', '.join(listed)})"
