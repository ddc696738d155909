"""What the data commands share: options, how a store and a configuration are found, how a command fails."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from schemas.config import Config
    from storage.store import Store

USAGE, FAILED = 2, 1
"""Exit codes: what was asked for can't be done as asked; it could not be done."""

Data = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="data root; else NLAC_DATA, else data/")
]
Run = Annotated[str | None, typer.Option(help="run; else the configuration's")]
PolicyOf = Annotated[
    int | None, typer.Option(help="iteration that trained the policy; else the newest", min=0)
]


def open_store(data: Path | None) -> "Store":
    """The store below the data root; creates nothing."""
    from schemas.load import data_root
    from storage.store import Store

    return Store(data_root(data))


def load(file: Path | None, run: str | None = None) -> "Config":
    """A configuration, for another run where one is named; raises ConfigError."""
    from schemas.load import load_config

    return load_config(file, {"run": run} if run is not None else {})


@contextmanager
def usable_config() -> Iterator[None]:
    """A configuration that can't be used ends the command with its message and exit code 2."""
    from schemas.load import ConfigError

    try:
        yield
    except ConfigError as error:
        fail(str(error), USAGE)


def fail(message: str, code: int) -> NoReturn:
    """End the command with one message on the error stream."""
    typer.echo(message, err=True)
    raise typer.Exit(code)
