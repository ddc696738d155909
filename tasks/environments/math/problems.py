"""Mathematics problems from a Parquet or JSONL file, in the form of MATH (Hendrycks et al. 2021) and MATH-500."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from tasks.foreign_json import BadJson, read_json

SHIPPED = Path(__file__).parent / "data" / "problems.jsonl"


@dataclass(frozen=True)
class Problem:
    """One problem.

    Attributes:
        problem_id: hash of the text, so it is the same after the file is sorted or cut.
        problem: the text.
        answer: the right answer alone, in LaTeX or plain.
        level: difficulty, 1 to 5 in MATH; None if the file has none.
        subject: empty if the file has none.
    """

    problem_id: str
    problem: str
    answer: str
    level: int | None
    subject: str


def load_problems(path: Path) -> tuple[Problem, ...]:
    """Read a file of problems.

    A record has `problem`, `answer` (or a `solution` with the answer in its last box), and optionally `level` (5, or
    "Level 5") and `subject` (or `type`).

    Raises:
        ValueError: the file or a record can't be used; names the record and the field.
    """
    seen: Counter[str] = Counter()
    problems = []
    for place, record in _records(path):
        try:
            text, answer = _text(record), _answer(record)
        except ValueError as error:
            raise ValueError(f"{path}, {place}: {error}") from error
        seen[text] += 1
        again = f"-{seen[text]}" if seen[text] > 1 else ""
        problem_id = f"{hashlib.sha256(text.encode()).hexdigest()[:12]}{again}"
        problems.append(Problem(problem_id, text, answer, _level(record), _subject(record)))
    if not problems:
        raise ValueError(f"{path}: holds no problem")
    return tuple(problems)


def _records(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each record with its position in the file."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    if path.suffix == ".parquet":
        try:
            rows = pl.read_parquet(path)
        except (pl.exceptions.PolarsError, OSError) as error:
            raise ValueError(f"{path}: no readable Parquet file ({error})") from error
        yield from ((f"row {number}", row) for number, row in enumerate(rows.iter_rows(named=True)))
        return
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                record = read_json(line)
            except BadJson as error:
                raise ValueError(f"{path}, line {number}: no JSON ({error})") from error
            if not isinstance(record, dict):
                raise ValueError(f"{path}, line {number}: no JSON object")
            yield f"line {number}", record


def _text(record: Mapping[str, Any]) -> str:
    text = record.get("problem")
    if not isinstance(text, str) or not text.strip():
        raise ValueError("`problem` is missing or empty")
    return text.strip()


def _answer(record: Mapping[str, Any]) -> str:
    stated = record.get("answer")
    if stated is not None and str(stated).strip():
        return str(stated).strip()
    found = last_box(str(record.get("solution") or ""))
    if not found:
        raise ValueError("no `answer`, and no `solution` with the answer in \\boxed{}")
    return found


def last_box(solution: str) -> str | None:
    r"""The content of the last \boxed{...}, with balanced braces; None without one."""
    _, box, rest = solution.rpartition("\\boxed{")
    if not box:
        return None
    depth = 1
    for position, sign in enumerate(rest):
        escaped = position > 0 and rest[position - 1] == "\\"
        depth += 0 if escaped else {"{": 1, "}": -1}.get(sign, 0)
        if depth == 0:
            return rest[:position].strip()
    return None


def _level(record: Mapping[str, Any]) -> int | None:
    found = re.search(r"\d+", str(record.get("level") or ""))
    return int(found[0]) if found else None


def _subject(record: Mapping[str, Any]) -> str:
    return str(record.get("subject") or record.get("type") or "")
