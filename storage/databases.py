"""Where Prefect and MLflow keep their records: SQLite below the data root, or PostgreSQL by one variable each.

`NLAC_PREFECT_DATABASE` and `NLAC_MLFLOW_DATABASE` hold an address, postgresql://USER:PASSWORD@HOST/NAME, or the
absolute path of a private file that holds it. Prefect's server gets the first, and all that write to MLflow the second.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from schemas.config.engines import mask_password
from schemas.secret_values import secret_value

if TYPE_CHECKING:
    from psycopg import Connection

PREFECT, MLFLOW = "NLAC_PREFECT_DATABASE", "NLAC_MLFLOW_DATABASE"
OLDEST = 14
CONNECT_SECONDS = 5
_FORM = "the form is postgresql://USER:PASSWORD@HOST/NAME. Write @ / : # ? % in a password as %40 %2F %3A %23 %3F %25"
_QUERY = {"host", "sslmode"}  # what both drivers understand; certificates are named by PGSSLROOTCERT


class DatabaseError(Exception):
    """A database can't be used. The message names the variable and the remedy, and holds no password."""


@dataclass(frozen=True)
class Database:
    """A PostgreSQL database.

    Attributes:
        variable: that names it.
        url: its address, with the password.
    """

    variable: str
    url: str = field(repr=False)

    @property
    def shown(self) -> str:
        """The address for people, without its password."""
        return mask_password(self.url)[0]

    @property
    def for_mlflow(self) -> str:
        """The address for SQLAlchemy with psycopg."""
        return self.url.replace("postgresql://", "postgresql+psycopg://", 1)

    @property
    def for_prefect(self) -> str:
        """The address for SQLAlchemy with asyncpg, which calls `sslmode` `ssl`."""
        bare, mark, query = self.url.replace("postgresql://", "postgresql+asyncpg://", 1).partition("?")
        renamed = [("ssl" if name == "sslmode" else name, value) for name, value in parse_qsl(query)]
        return f"{bare}{mark}{urlencode(renamed)}"

    def connect(self) -> "Connection[Any]":
        """A connection in autocommit mode.

        Raises:
            DatabaseError: the driver is missing, or the server refuses.
        """
        try:
            import psycopg
        except ImportError:
            raise DatabaseError(
                f"{self.variable}: the PostgreSQL driver is not installed; first: pip install 'nlac[postgres]'"
            ) from None
        try:
            return psycopg.connect(self.url, autocommit=True, connect_timeout=CONNECT_SECONDS)
        except psycopg.Error as error:
            raise DatabaseError(self.explained(str(error))) from None

    def explained(self, error: str) -> str:
        """What a driver said, without the password, and with what to do."""
        said, password = " ".join(error.split()), mask_password(self.url)[1]
        for secret in filter(None, (password, unquote(password))):
            said = said.replace(secret, "***")
        remedy = next((remedy for part, remedy in _REMEDIES.items() if part in said), _UNREACHABLE)
        return f"{self.variable}: {self.shown} can't be used: {said}. {remedy.format(variable=self.variable)}"

    def check(self) -> None:
        """Whether tables can be made there.

        Raises:
            DatabaseError: they can't.
        """
        version_of = "select current_setting('server_version_num')::int / 10000"
        with self.connect() as connection:
            (version,) = connection.execute(version_of).fetchone() or (0,)
            if version < OLDEST:
                raise DatabaseError(f"{self.variable}: PostgreSQL {version}; it must be {OLDEST} or newer")
            may = "select has_schema_privilege(current_schema(), 'CREATE'), current_user, current_database()"
            allowed, user, name = connection.execute(may).fetchone() or (False, "", "")
            if not allowed:
                raise DatabaseError(
                    f"{self.variable}: user {user} may not make tables in {self.shown}; as an administrator: "
                    f'ALTER DATABASE "{name}" OWNER TO "{user}"'
                )


_UNREACHABLE = (
    "Does PostgreSQL run there, does it listen on that address (listen_addresses), and does a firewall let this host "
    "in? {variable} names it"
)
_REMEDIES = {
    "password": "Put the right user and password into {variable}",
    "pg_hba.conf": "Allow this host, user and database in the server's pg_hba.conf",
    "does not exist": "Make user and database, for instance createdb --owner USER NAME, or correct {variable}",
    "SSL": "Add ?sslmode=require or ?sslmode=disable to {variable}, as the server wants it",
}


def database(variable: str, environment: Mapping[str, str] = os.environ) -> Database | None:
    """The database that a variable names; None where it is SQLite below the data root.

    Raises:
        DatabaseError: the address is no address of a PostgreSQL database.
        ConfigError: the file that is to hold it can't be used.
    """
    given = secret_value(variable, environment)
    if given is None:
        return None
    try:
        parts = urlsplit(given)
        named = parts.hostname or dict(parse_qsl(parts.query)).get("host")
        _ = parts.port
    except ValueError:
        raise DatabaseError(f"{variable}: host or port can't be read; {_FORM}") from None
    if parts.scheme not in ("postgresql", "postgres"):
        raise DatabaseError(f"{variable}: it must begin with postgresql://; {_FORM}")
    if not named or not parts.path.strip("/") or parts.fragment:
        raise DatabaseError(f"{variable}: it must name a host and a database; {_FORM}")
    if unknown := {name for name, _ in parse_qsl(parts.query)} - _QUERY:
        raise DatabaseError(
            f"{variable}: {', '.join(sorted(unknown))}: not known after ?; known: {', '.join(sorted(_QUERY))}"
        )
    return Database(variable, given.replace("postgres://", "postgresql://", 1))


def check_databases(*variables: str) -> None:
    """Connect to each database that one of these variables names, before anything is started that needs it.

    Raises:
        DatabaseError: one can't be used, or two are the same: Prefect and MLflow give tables the same names.
        ConfigError: as `database`.
    """
    found = [known for variable in variables if (known := database(variable)) is not None]
    places = [urlsplit(known.url) for known in found]
    if len({(p.hostname, p.port or 5432, p.path, p.query) for p in places}) < len(found):
        raise DatabaseError(
            f"{' and '.join(known.variable for known in found)} name the same database; Prefect and MLflow need one "
            "each, because both have a table alembic_version"
        )
    for known in found:
        known.check()
