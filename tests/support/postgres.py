"""A PostgreSQL server of the tests' own, from Debian's package, on a free port and in a temporary folder."""

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from urllib.parse import quote

from tasks.ports import free_port

PASSWORD = "pa@ss/planted"


def programs() -> Path | None:
    """The folder of initdb and pg_ctl; None where PostgreSQL is not installed, or can't be started by this user."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("initdb")
    folder = found[-1].parent if found else Path(on_path).parent if on_path else None
    return folder if folder is not None and (os.geteuid() or _user() is not None) else None


def _user() -> int | None:
    try:
        return pwd.getpwnam("postgres").pw_uid
    except KeyError:
        return None


@dataclass(frozen=True)
class Postgres:
    """A running server.

    Attributes:
        address: where it listens.
        port: its port there.
        folder: of its data; the log is beside it.
    """

    address: str
    port: int
    folder: Path

    def url(self, name: str, user: str = "nlac", password: str = PASSWORD) -> str:
        """The address of a database."""
        return f"postgresql://{user}:{quote(password, safe='')}@{self.address}:{self.port}/{name}"

    def sql(self, statement: str, name: str = "postgres") -> list[tuple[object, ...]]:
        """Carry a statement out as the administrator, who comes through the socket in the server's folder."""
        import psycopg

        there = {"host": str(self.folder), "port": self.port, "user": "admin", "password": PASSWORD}
        with psycopg.connect(dbname=name, autocommit=True, **there) as connection:
            answer = connection.execute(statement)
            return answer.fetchall() if answer.description else []

    def create(self, name: str) -> str:
        """A new database that user nlac owns; gives its address."""
        self.sql(f'create database "{name}" owner nlac')
        return self.url(name)


@contextmanager
def postgres(address: str = "127.0.0.1", within: tuple[str, ...] = ()) -> Iterator[Postgres]:
    """Start a server, and stop and remove it in the end.

    Args:
        address: where it listens.
        within: a command that carries another out, for instance in a network namespace.
    """
    folder = programs()
    assert folder is not None
    home, user = Path(mkdtemp(prefix="nlac-postgres-")), _user() if os.geteuid() == 0 else None
    secret = home / "password"
    secret.write_text(PASSWORD)
    as_user: tuple[str, ...] = ()
    if user is not None:
        shutil.chown(home, user)
        shutil.chown(secret, user)
        as_user = ("setpriv", f"--reuid={user}", f"--regid={pwd.getpwuid(user).pw_gid}", "--clear-groups")

    def run(*command: str) -> None:
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        subprocess.run([*within, *as_user, *command], cwd=home, check=True, **quiet)

    port, data = free_port(0), home / "data"
    try:
        made = ("-U", "admin", "-A", "scram-sha-256", f"--pwfile={secret}", "-N", "-E", "UTF8")
        run(str(folder / "initdb"), "-D", str(data), *made)
        with (data / "pg_hba.conf").open("a", encoding="utf-8") as rules:
            rules.write("host all all all scram-sha-256\n")
        options = f"-k {home} -c listen_addresses={address} -p {port} -c fsync=off -c max_connections=200"
        control = (str(folder / "pg_ctl"), "-D", str(data))
        run(*control, "-w", "-l", str(home / "log"), "-o", options, "start")
        try:
            server = Postgres(address, port, home)
            server.sql(f"create user nlac password '{PASSWORD}'")
            yield server
        finally:
            run(*control, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(home, ignore_errors=True)
