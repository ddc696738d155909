"""What commands share: options, finding a store and a configuration, and how a command fails."""

import errno
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from schemas.load import ConfigError, data_root, load_config
from schemas.shown import visible

if TYPE_CHECKING:
    from schemas.config import Config
    from storage.store import Store

USAGE, FAILED, LOST = 2, 1, 3
"""Exit codes: the command can't be carried out as given; it failed; committed data is missing or damaged."""
_PLACES = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.ENOTDIR}

Data = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="data root; else NLAC_DATA, else data/")
]
Run = Annotated[str | None, typer.Option(help="run; else the configuration's")]
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


def open_store(data: Path | None) -> "Store":
    """The store below the data root; creates nothing."""
    from storage.store import Store

    return Store(data_root(data))


def load(file: Path | None, run: str | None = None) -> "Config":
    """A configuration, for another run where one is named; raises ConfigError."""
    return load_config(file, {"run": run} if run is not None else {})


def known_run(store: "Store", run: str) -> str:
    """The name of a run that is there; otherwise the command ends, and the message lists the runs."""
    from difflib import get_close_matches

    runs = store.runs()
    if run not in runs:
        near = get_close_matches(run, runs, n=1)
        meant = (
            f", did you mean '{near[0]}'?" if near else "; begin one with `nlac iterate`" if not runs else ""
        )
        fail(f"no run '{run}' under {store.root}{meant} (there are: {', '.join(runs) or 'none'})", USAGE)
    return run


def say(text: str, *, err: bool = False) -> None:
    """Print a line that may hold what others wrote, as text."""
    typer.echo(visible(text), err=err)


def fail(message: str, code: int) -> NoReturn:
    """End the command with one message on the error stream."""
    say(message, err=True)
    raise typer.Exit(code)
