"""The objects of the game: the shipped table, one like it, or the table of THINGS.

THINGS (Hebart et al. 2019) has 1,854 object concepts with WordNet synonyms and definitions. Its table
(things_concepts.tsv) is recognized by its columns Word and uniqueID.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import polars as pl

from tasks.environments.twenty_questions.names import is_last_words, key, split_qualifier
from tasks.environments.twenty_questions.vocabulary import vocabulary

SHIPPED = Path(__file__).parent / "data" / "objects.tsv"
_COLUMNS = ("name", "synonyms", "category", "definition")
_DEFINITION = "Definition (from WordNet, Google, or Wikipedia)"
_THINGS = ("Word", "uniqueID", "WordNet Synonyms", _DEFINITION)
_CATEGORY = "Bottom-up Category (Human Raters)"


@dataclass(frozen=True)
class Thing:
    """One object.

    Attributes:
        name: its full name without a qualifier; homonyms share it.
        qualifier: distinguishes homonyms, as in bat (animal); None if the name is unique.
        synonyms: other full names.
        categories: its kinds, most specific first, then the kinds above them; empty if unknown.
        definition: a phrase.
        size: 0 (a coin) to 5 (larger than a car); None if unknown.
        facts: the vocabulary's facts that are true of it; None if unknown.
    """

    name: str
    qualifier: str | None
    synonyms: tuple[str, ...]
    categories: tuple[str, ...]
    definition: str
    size: int | None = None
    facts: frozenset[str] | None = None

    @property
    def title(self) -> str:
        """The name with its qualifier."""
        return f"{self.name} ({self.qualifier})" if self.qualifier else self.name

    def wins(self, guess: str) -> bool:
        """Whether a guess is the full name or a synonym, without a qualifier or with the right one."""
        name, qualifier = split_qualifier(guess)
        if qualifier is not None and self.qualifier is not None and key(qualifier) != key(self.qualifier):
            return False
        return key(name) in {key(known) for known in (self.name, *self.synonyms)}


def load_things(path: Path = SHIPPED) -> tuple[Thing, ...]:
    """Read a table of objects (.tsv, .csv or .parquet), in its order.

    Args:
        path: a table like the shipped one, with the columns name, synonyms, category, definition and optionally size
            and facts (lists separated by ';'); or the table of THINGS.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the table can't be read, lacks a column, or has a wrong row; names the row.
    """
    try:
        changed = path.stat().st_mtime_ns
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"objects: {path} can't be read: there is no such file; correct the path, or leave the option out for the "
            "shipped table"
        ) from error
    except OSError as error:
        raise ValueError(f"objects: {path} can't be read: {error.strerror}; correct the path") from error
    return _load(path, changed)


@lru_cache(maxsize=8)
def _load(path: Path, changed: int) -> tuple[Thing, ...]:
    """The objects of a table; `changed`, its modification time, is part of the cache key."""
    frame = _read(path)
    if set(_COLUMNS) <= set(frame.columns):
        rows = _own(frame, path)
    elif set(_THINGS) <= set(frame.columns):
        rows = _things(frame)
    else:
        raise ValueError(
            f"objects: {path} has the columns {', '.join(frame.columns)}; it needs {', '.join(_COLUMNS)}, or those of "
            f"THINGS: {', '.join(_THINGS)}"
        )
    things = tuple(rows)
    known = Counter((key(thing.name), thing.qualifier) for thing in things)
    if twice := [thing.title for thing in things if known[key(thing.name), thing.qualifier] > 1]:
        raise ValueError(
            f"objects: {path} has {twice[0]} twice; distinguish homonyms with a qualifier: bat (animal)"
        )
    if len(things) < 2:
        raise ValueError(f"objects: {path} has fewer than two objects; add rows")
    return things


def _read(path: Path) -> pl.DataFrame:
    readers: Mapping[str, Any] = {
        ".tsv": lambda: pl.read_csv(path, separator="\t", infer_schema=False, quote_char=None),
        ".csv": lambda: pl.read_csv(path, infer_schema=False),
        ".parquet": lambda: pl.read_parquet(path).with_columns(pl.all().cast(pl.String)),
    }
    if path.suffix not in readers:
        raise ValueError(f"objects: {path} is not a .tsv, .csv or .parquet file; convert it")
    try:
        frame: pl.DataFrame = readers[path.suffix]()
    except (OSError, pl.exceptions.PolarsError) as error:
        raise ValueError(f"objects: {path} can't be read: {error}") from error
    return frame.fill_null("")


def _own(frame: pl.DataFrame, path: Path) -> Iterator[Thing]:
    """Rows of a table like the shipped one."""
    known = vocabulary()
    for row in frame.iter_rows(named=True):
        title, size = row["name"], row.get("size", "")
        if not title.strip():
            raise ValueError(f"objects: {path} has a row without a name; add one")
        name, qualifier = split_qualifier(title)
        kinds = _listed(row["category"])
        if size not in ("", *"012345"):
            raise ValueError(f"objects: {path}: size of {title} is {size!r}; use 0 to 5, or leave it empty")
        facts = None
        if "facts" in row:
            try:
                facts = known.facts_of(kinds, size, _listed(row["facts"]))
            except KeyError as error:
                raise ValueError(
                    f"objects: {path}: {title}: {error.args[0]} is neither a category nor a fact of "
                    f"{known.place}; correct it, or leave the column facts out"
                ) from error
        above = tuple(known.with_parents(kinds)) if facts is not None else kinds
        yield Thing(
            name,
            qualifier,
            _listed(row["synonyms"]),
            above,
            row["definition"],
            int(size) if size else None,
            facts,
        )


def _things(frame: pl.DataFrame) -> Iterator[Thing]:
    """Rows of THINGS. The category, or else the concept's id, distinguishes concepts that share a word.

    A synonym that is the end of the name (in WordNet, 'dog' for a hot dog) is dropped: it would let the last word win.
    """
    rows = [
        {name: value.replace("_", " ").strip() for name, value in row.items()}
        for row in frame.iter_rows(named=True)
    ]
    shared = Counter(key(row["Word"]) for row in rows)
    kinds = Counter((key(row["Word"]), row.get(_CATEGORY, "")) for row in rows)
    for row in rows:
        word, kind = row["Word"], row.get(_CATEGORY, "")
        told = kind if kind and kinds[key(word), kind] == 1 else row["uniqueID"]
        others = (other.strip() for other in row["WordNet Synonyms"].split(","))
        yield Thing(
            name=word,
            qualifier=told if shared[key(word)] > 1 else None,
            synonyms=tuple(o for o in others if o and key(o) != key(word) and not is_last_words(o, word)),
            categories=tuple(k.strip() for k in kind.split(",") if k.strip()),
            definition=row[_DEFINITION],
        )


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(";") if part.strip())
