"""A stack over several hosts: what each of them starts, the names of their workers, and which of them are gone.

One host has the Prefect server; others join it with workers of their own. A worker's name ends with its host, and
Prefect notes it in the labels of each run that the worker takes. So a process id is read on its own host alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from socket import gethostname

LOOPBACK = "127.0.0.1"
ROLES = ("orchestration", "inference", "training")
JOINED_ROLES = ("inference", "training")
"""What a joining host serves unless it says otherwise: iterations read configuration files by their path."""

WORKER_LABEL = "prefect.worker.name"
HEARTBEAT_SECONDS = 15
"""Prefect calls a worker offline after three times as long without a heartbeat."""
LOOK_SECONDS = 20.0

_PREFIX = "nlac-"


@dataclass(frozen=True)
class Share:
    """What a host starts of a stack.

    Attributes:
        listen: address of the host on which its server listens.
        join: address of the API of another host's server; None: it starts its own.
        roles: of the pools that its workers serve.
    """

    listen: str = LOOPBACK
    join: str | None = None
    roles: tuple[str, ...] = ROLES

    @property
    def is_alone(self) -> bool:
        """Whether no other host can belong to the stack."""
        return self.join is None and self.listen == LOOPBACK


def worker_name(role: str, host: str | None = None) -> str:
    """The name of a host's worker; of this host's by default."""
    return f"{_PREFIX}{role}@{host or gethostname()}"


def host_tag() -> str:
    """The tag of flow runs that no worker took, because a process of this host's `nlac iterate` runs them."""
    return f"host:{gethostname()}"


def host_of(worker: str) -> str | None:
    """The host of a worker; None: its name is not one that a stack gives."""
    own, at, host = worker.partition("@")
    return host if at and host and own.removeprefix(_PREFIX) in ROLES and own.startswith(_PREFIX) else None


class GoneWorkers:
    """Finds workers of other hosts whose heartbeats have ended.

    A server that was away itself calls all workers offline for a moment. So a worker counts as gone when it is offline
    in two looks in a row, in which this host's own workers are online.
    """

    def __init__(self) -> None:
        self._offline: set[str] = set()
        self._known: set[str] = set()

    def look(self, online: Mapping[str, bool]) -> set[str]:
        """Look once.

        Args:
            online: by name, whether the server calls a worker online.

        Returns:
            All workers that are gone, if one of them was not known to be; else none.
        """
        own = {name for name in online if host_of(name) == gethostname()}
        if not own or not all(online[name] for name in own):
            self._offline = set()
            return set()
        offline = {name for name, alive in online.items() if not alive and host_of(name)}
        gone, self._offline = offline & self._offline, offline
        new, self._known = gone - self._known, gone
        return gone if new else set()
