"""What commands share: options, finding a store and a configuration, and how a command fails."""

import errno
import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from schemas.load import ConfigError, data_root, load_config
from schemas.shown import visible

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from schemas.config import Config
    from storage.store import Store

USAGE, FAILED, LOST = 2, 1, 3
"""Exit codes: the command can't be carried out as given; it failed; committed data is missing or damaged."""
_PLACES = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.ENOTDIR}

Data = Annotated[
    str | None,
    typer.Option(
        "--data", metavar="DIR", help="data root: a folder, or s3://BUCKET/PREFIX; else NLAC_DATA, else data/"
    ),
]


def complete_run(incomplete: str) -> list[str]:
    """Runs of the data root (NLAC_DATA, else data/) whose name begins so, for the shell."""
    return [run for run in open_store(None).runs() if run.startswith(incomplete)]


Run = Annotated[str | None, typer.Option(help="run; else the configuration's", autocompletion=complete_run)]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="configuration; else configs/default.yaml")]
AllowMissing = Annotated[
    bool, typer.Option("--allow-missing", help="go on without files that are gone or truncated")
]
PolicyOf = Annotated[
    int | None, typer.Option(help="iteration that trained the policy; else the newest", min=0)
]


def _allow(modules: list[str] | None) -> list[str]:
    if modules:
        from tasks.imports import allow_imports

        allow_imports(modules)
    return modules or []


AllowImport = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-import", metavar="MODULE", callback=_allow,
        help="a module outside this program that the configuration may import, which runs its code; repeatable; "
        "NLAC_ALLOW_IMPORT does the same",
    ),
]  # fmt: skip


class ListFormat(StrEnum):
    """How a list is written."""

    table = "table"
    json = "json"


ListAs = Annotated[ListFormat, typer.Option("--format", help="table: to read; json: for programs")]


class Commands(TyperGroup):
    """Commands that end with one message and an exit code where the program's own exceptions are raised.

    Such an exception says what was wrong and what to do. A place that can't be written to is no bug either. Any other
    exception is one, and keeps its traceback.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            fail(str(error), USAGE)
        except OSError as error:
            if error.errno not in _PLACES or error.filename is None:
                raise
            fail(
                f"{error.filename}: {error.strerror}; choose another data root with --data or NLAC_DATA",
                FAILED,
            )
        except Exception as error:
            if type(error).__module__.partition(".")[0] not in ("flows", "storage", "tasks", "prompts"):
                raise
            fail(str(error), FAILED)


def open_store(data: str | None) -> "Store":
    """The store below the data root; creates nothing but the mirror of a bucket."""
    from storage.store import Store

    return Store(data_root(data))


def committed_data(store: "Store", allow_missing: bool, *, unsafe: bool = False) -> "DuckDBPyConnection":
    """SQL over committed data. The command ends where some is gone, unless that is allowed."""
    from storage.sql.views import connect

    problems: list[str] = []
    database = connect(store, problems, unsafe=unsafe)
    refuse_missing(problems, allow_missing)
    return database


def refuse_missing(problems: Sequence[str], allow_missing: bool) -> None:
    """Name what is gone; the command ends where anything is, unless that is allowed."""
    for problem in problems:
        say(f"left out: {problem}", err=True)
    if problems and not allow_missing:
        fail("committed data is missing, so nothing is shown; --allow-missing goes on without it", LOST)


def load(file: Path | None, run: str | None = None) -> "Config":
    """A configuration, for another run where one is named; raises ConfigError."""
    return load_config(file, {"run": run} if run is not None else {})


def known_run(store: "Store", run: str) -> str:
    """The name of a run that is there; otherwise the command ends, and the message lists the runs."""
    from difflib import get_close_matches

    runs = store.runs()
    if run not in runs:
        near = get_close_matches(run, runs, n=1)
        meant = f", did you mean '{near[0]}'?" if near else ""
        there = f" (there are: {', '.join(runs)})" if runs else "; begin one with `nlac iterate`"
        fail(f"no run '{run}' under {store}{meant}{there}", USAGE)
    return run


def chosen_run(store: "Store", run: str | None) -> str:
    """The run of an option --run; the configuration's where none is given. One that is given must be there."""
    return load(None).run if run is None else known_run(store, run)


def say(text: str, *, err: bool = False) -> None:
    """Print a line that may hold what others wrote, as text."""
    typer.echo(visible(text), err=err)


def say_json(value: object) -> None:
    """Print a value as JSON in ASCII, so that no character of what others wrote reaches a terminal."""
    typer.echo(json.dumps(value, indent=2, default=str))


def fail(message: str, code: int) -> NoReturn:
    """End the command with one message on the error stream."""
    say(message, err=True)
    raise typer.Exit(code)
