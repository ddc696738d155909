"""Where the MLflow store of a data root is, and its lock.

<data>/.mlflow/mlflow.db      the store, unless NLAC_MLFLOW_DATABASE names another (`storage.databases`)
<data>/.mlflow/database       the address of that other one, without its password
<data>/.mlflow/.lock          held while one process writes to mlflow.db
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from storage.databases import MLFLOW, Database, DatabaseError, database
from storage.files import PRIVATE_FILE, PRIVATE_FOLDER, make_folder, replace_text

FILE, ELSEWHERE = "mlflow.db", "database"
LOCK_SECONDS = 60.0
_LOCK_KEY = 0x6E6C6163  # "nlac"; who else uses the database takes another


class Backend:
    """The MLflow store of a data root.

    Args:
        data_root: the data root.
    """

    def __init__(self, data_root: Path) -> None:
        self.home = data_root.resolve() / ".mlflow"

    @property
    def exists(self) -> bool:
        """Whether there may be records: a database is named, which any host writes to, or this host has written some.

        Raises:
            ConfigError, DatabaseError: NLAC_MLFLOW_DATABASE is wrong.
        """
        return any((self.home / name).exists() for name in (FILE, ELSEWHERE)) or database(MLFLOW) is not None

    def database(self) -> Database | None:
        """The database; None: it is SQLite.

        Raises:
            DatabaseError: NLAC_MLFLOW_DATABASE is wrong, or it is not set and the data root's store is a database. A
                second store would begin otherwise, and `nlac gc` would know no champion.
        """
        known, elsewhere = database(MLFLOW), self.home / ELSEWHERE
        if known is None and elsewhere.exists():
            raise DatabaseError(
                f"{MLFLOW} is not set, and MLflow's records of this data root are in "
                f"{elsewhere.read_text(encoding='utf-8').strip()}; set it, or remove {elsewhere} to begin anew in "
                "SQLite"
            )
        return known

    def uri(self) -> str:
        """The store's SQLAlchemy address, which may hold a password.

        Raises:
            DatabaseError: as `database`.
        """
        known = self.database()
        return known.for_mlflow if known else f"sqlite:///{self.home / FILE}"

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the store: of all processes of this host, and with a database of all hosts, one writes at a time.

        Raises:
            DatabaseError: the database can't be reached, or is held for too long.
            filelock.Timeout: the file is held for too long.
        """
        known = self.database()
        make_folder(self.home, PRIVATE_FOLDER)
        if known is None:
            with FileLock(self.home / ".lock", timeout=LOCK_SECONDS):
                if not (self.home / FILE).exists():  # SQLite gives what it writes beside it the same mode
                    (self.home / FILE).touch(PRIVATE_FILE)
                yield
            return
        with known.connect() as connection:
            import psycopg

            try:
                connection.execute(f"set lock_timeout = '{LOCK_SECONDS:.0f}s'")
                connection.execute(
                    "select pg_advisory_lock(%s)", [_LOCK_KEY]
                )  # the connection's end frees it
            except psycopg.Error as error:
                raise DatabaseError(known.explained(str(error))) from None
            if not (self.home / ELSEWHERE).exists():
                replace_text(self.home / ELSEWHERE, f"{known.shown}\n", PRIVATE_FILE)
            yield
