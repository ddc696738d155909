"""Commands as a user calls them, in this process."""

from typer.testing import CliRunner, Result

from flows.cli.main import app
from storage.store import Store


def nlac(store: Store, *words: str) -> Result:
    """What a command says and ends with, over the data root of a store."""
    done = CliRunner().invoke(app, [*words], env={"NLAC_DATA": str(store.root)})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done
