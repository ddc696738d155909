"""`nlac import`: a file of logged conversations becomes a rollout of a run, committed atomically.

The rollout belongs to the run's next iteration with nothing committed, 0 in a new run. Its fingerprint inputs hold the
sha256 of the file, so the same file is never imported into a run twice.
"""

import json
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from schemas.config import EnvironmentSection
from schemas.manifest import FingerprintInputs
from schemas.rows import Episode, Reject, Transition
from storage.files import sha256_file
from storage.parquet.table_stream import TableStream
from storage.store import Committed, Store
from tasks.environments.logged import NAME
from tasks.foreign_json import read_json
from tasks.logs.conversation import plain, read_conversation
from tasks.logs.records import BrokenRecord, LogFormat, UnreadableLog, read_records
from tasks.logs.schema import Rejected, Tool
from tasks.pipeline.commit import begin_run, commit_folder
from tasks.pipeline.decision import is_import
from tasks.pipeline.iterations import next_iteration
from tasks.runtime.stage import Output, StageFailed

VERSION = 1  # increased when the same file gives other rows
STAGE = "rollout"
EXCERPT = 200  # characters kept of a rejected record


@dataclass(frozen=True)
class ImportResult:
    """The committed rollout, and whether the file was already imported."""

    committed: Committed
    known: bool

    @property
    def episodes(self) -> int:
        return self.committed.manifest.tables[Episode.TABLE].rows

    @property
    def transitions(self) -> int:
        return self.committed.manifest.tables[Transition.TABLE].rows

    @property
    def rejects(self) -> dict[str, int]:
        """Kind of fault -> number of records."""
        return self.committed.manifest.tables[Reject.TABLE].statuses


def load_tools(path: Path) -> list[dict[str, Any]]:
    """Tool schemas from a JSON file: a list of {"type": "function", "function": {...}}, or of the functions alone.

    Raises:
        UnreadableLog: the file can't be read, or holds no tool schemas.
    """
    try:
        content = read_json(path.read_bytes())
        listed = content if isinstance(content, list) else [content]
        tools = [t if "function" in t else {"type": "function", "function": t} for t in listed]
        TypeAdapter(list[Tool]).validate_python(tools)
    except OSError as error:
        raise UnreadableLog(f"{path}: can't be read ({error.strerror}); correct --tools") from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise UnreadableLog(
            f"{path}: tool {field}: {first['msg']}; correct it, or leave --tools out"
        ) from error
    except (ValueError, TypeError) as error:
        raise UnreadableLog(f"{path}: is not a JSON list of tool schemas ({error})") from error
    return tools


def import_log(
    store: Store,
    run: str,
    path: Path,
    how: LogFormat,
    *,
    tools: list[dict[str, Any]] | None = None,
    report: Callable[[int], None] | None = None,
) -> ImportResult:
    """Import a file into a run. A file that was already imported adds nothing.

    Args:
        store: the artifact store.
        run: the run.
        path: the file.
        how: its format.
        tools: tool schemas for conversations without their own.
        report: called with the number of records read, every 1000 records.

    Raises:
        UnreadableLog: the file can't be read, or none of its records can be used.
        StageFailed: the run holds episodes that were played.
        RunLocked: another process writes the run.
    """
    try:
        digest = sha256_file(path)
    except OSError as error:
        raise UnreadableLog(f"{path}: can't be read ({error.strerror})") from error
    with store.lock(run, f"an import of {path.name}"):
        for made in _rollouts(store, run):
            if not is_import(made):
                raise StageFailed(
                    f"run '{run}' holds episodes that were played (iteration {made.manifest.iteration}); import into a "
                    "run of its own: --run NAME"
                )
            if made.manifest.fingerprint_inputs.config[NAME]["file"] == digest:
                return ImportResult(made, known=True)
        iteration = next_iteration(store, run)
        while store.current(run, iteration).stages:
            iteration += 1
        fingerprint_inputs = FingerprintInputs(
            stage=STAGE,
            code_version=VERSION,
            run=run,
            iteration=iteration,
            config={
                "environment": EnvironmentSection(name=NAME).model_dump(mode="json"),
                NAME: {"file": digest, "format": how, "tools": tools or []},
            },
            prompts={},
            models={},
            inputs={},
        )
        return ImportResult(_write(store, path, how, tools or [], fingerprint_inputs, report), known=False)


def _rollouts(store: Store, run: str) -> list[Committed]:
    found = (store.committed(run, STAGE, number) for number in store.iterations(run))
    return [made for made in found if made is not None]


def _write(
    store: Store,
    path: Path,
    how: LogFormat,
    tools: list[dict[str, Any]],
    fingerprint_inputs: FingerprintInputs,
    report: Callable[[int], None] | None,
) -> Committed:
    """Read the file into a staging folder, and commit it."""
    run, iteration = fingerprint_inputs.run, fingerprint_inputs.iteration
    attempt = begin_run(store, fingerprint_inputs)
    faults: Counter[str] = Counter()
    count = 0
    with store.staging(run) as workdir:
        with ExitStack() as open_tables:
            models = (Episode, Transition, Reject)
            tables = {m.TABLE: open_tables.enter_context(TableStream(workdir, m)) for m in models}
            for count, (number, record) in enumerate(read_records(path, how), start=1):
                try:
                    made = read_conversation(record, number, run=run, iteration=iteration, tools=tools)
                except Rejected as reason:
                    faults[reason.kind] += 1
                    tables[Reject.TABLE].append(_reject(fingerprint_inputs, path, number, record, reason))
                else:
                    tables[Episode.TABLE].append(made.episode)
                    for row in made.transitions:
                        tables[Transition.TABLE].append(row)
                if report and count % 1000 == 0:
                    report(count)
        if not tables[Episode.TABLE].rows:
            kinds = ", ".join(f"{n} {kind}" for kind, n in faults.most_common()) or "it holds no record"
            raise UnreadableLog(f"{path}: no record can be used ({kinds}); nothing is imported. {HINT}")
        metrics = {"records": float(count), "rejects": float(faults.total())}
        output = Output(tables={}, rows_in=count, metrics=metrics)
        return commit_folder(
            store, attempt, {name: table.entry() for name, table in tables.items()}, output, workdir
        )


HINT = "docs/logged.md says what a record is; --format what the file holds"


def _reject(made: FingerprintInputs, path: Path, number: int, record: Any, reason: Rejected) -> Reject:
    try:
        broken = isinstance(record, BrokenRecord)
        shown = record.text if broken else json.dumps(record, ensure_ascii=False, default=plain)
    except (RecursionError, ValueError) as error:
        shown = f"a record that can't be shown ({type(error).__name__})"
    return Reject(
        run=made.run,
        iteration=made.iteration,
        status=reason.kind,
        error=_storable(str(reason)),
        reject_id=f"{made.run}/{made.iteration:05d}/reject/{number:07d}",
        file=path.name,
        record=number,
        excerpt=_storable(shown[:EXCERPT]),
    )


def _storable(text: str) -> str:
    # A lone surrogate has no UTF-8.
    return text.encode(errors="replace").decode()
