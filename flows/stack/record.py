"""What the local stack of a data root is, and whether it is up.

On disk, below `<data>/.stack/`: `lock` (held by the supervisor while the stack is up), `stack.json` (what was
started), `profiles.toml` (the secret), `prefect/` (PREFECT_HOME with the SQLite database), `logs/`, `progress/` (for
the terminal), `leases/` (of the commands that use it), `temporary` (there if the last of those stops it).
"""

import os
from pathlib import Path
from socket import gethostname
from typing import Literal

from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, Field

from flows.stack.environment import stack_dir
from flows.stack.hosts import LOOPBACK
from flows.stack.private import AUTH_STRING
from storage.files import replace_text

UP = ("server", "ready")
"""States in which the server answers."""

TEMPORARY = "temporary"
"""File that says that the last command that uses the stack stops it. Such a stack has no workers."""


class Stack(BaseModel):
    """The content of `stack.json`. `listen` and `join` are those of `flows.stack.hosts.Share`; of a stack that joined
    another, `port` is 0. `pid`, and an address on the loopback, are those of its host. `secret` is that of a server
    which the environment names; a stack's own is in its profile. In state `server` it has its server alone: it is of
    `nlac iterate`, which needs no workers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pid: int
    port: int
    data: str
    host: str = Field(default_factory=gethostname)
    listen: str = LOOPBACK
    join: str | None = None
    secret: str | None = Field(default=None, exclude=True, repr=False)
    state: Literal["starting", "server", "ready", "failed"] = "starting"
    error: str | None = None

    @property
    def api_url(self) -> str:
        return self.join or f"http://{self.listen}:{self.port}/api"

    @property
    def ui_url(self) -> str:
        return self.api_url.removesuffix("/api")


def write_stack(root: Path, stack: Stack | None) -> None:
    """Write `stack.json`, or remove it with None."""
    path = stack_dir(root) / "stack.json"
    if stack is None:
        path.unlink(missing_ok=True)
    else:
        replace_text(path, stack.model_dump_json(indent=2) + "\n")


def read_stack(root: Path) -> Stack | None:
    """The stack of a data root on this host, in any state, if its supervisor lives."""
    stack = held_stack(root)
    return stack if stack is not None and stack.host == gethostname() else None


def held_stack(root: Path) -> Stack | None:
    """The stack whose supervisor holds the lock, of this host or of another that shares the folder."""
    folder = stack_dir(root)
    if not (folder / "lock").exists():
        return None
    try:
        with FileLock(folder / "lock", timeout=0):
            return None
    except Timeout:
        return recorded_stack(root)


def reached_stack(root: Path) -> Stack | None:
    """The stack of a data root that is up here; else the server that the environment names together with its secret, as
    it does in a cluster's pods. None where there is neither."""
    stack = read_stack(root)
    if stack is not None:
        return stack if stack.state in UP else None
    server, secret = os.environ.get("PREFECT_API_URL"), os.environ.get(AUTH_STRING)
    if not server or not secret:
        return None
    return Stack(pid=0, port=0, data=str(root), join=server, secret=secret, state="ready")


def recorded_stack(root: Path) -> Stack | None:
    """What `stack.json` says, whoever lives; None where there is none."""
    try:
        return Stack.model_validate_json((stack_dir(root) / "stack.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
