"""torchrun on one host, alone or as one of several: where hosts meet, its command, its environment, and its end.

Hosts meet by torchrun's own rendezvous (c10d). Its store is at NLAC_RENDEZVOUS, on the host that runs the stage.
Imports no torch.
"""

import os
import platform
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

import psutil

from schemas.config import TrainerSection
from schemas.load import python_path
from tasks.engines.reaper import watch
from tasks.training.records import TrainingError

RENDEZVOUS = "NLAC_RENDEZVOUS"
MEET_SECONDS = 600


@dataclass(frozen=True)
class Rendezvous:
    """Where hosts meet.

    Attributes:
        host: name or IPv4 address of the host that runs the stage.
        port: of its store.
        own: this host's address in the network of that one.
        is_here: whether that host is this one.
        seconds: within which all hosts must have met.
    """

    host: str
    port: int
    own: str
    is_here: bool
    seconds: int

    @property
    def shown(self) -> str:
        """As a person writes it."""
        return f"{self.host}:{self.port}"


def rendezvous() -> Rendezvous:
    """What the environment says.

    Raises:
        TrainingError: the variable is not set, not of the form, or names no host that is known here.
    """
    given = os.environ.get(RENDEZVOUS, "")
    host, _, port = given.rpartition(":")
    form = f"set {RENDEZVOUS} to HOST:PORT on every host: the host that runs the training stages, and a free port of it"
    if not host or not port.isdecimal():
        raise TrainingError(f"trainer.hosts: {RENDEZVOUS} is {given or 'not set'!r}; {form}")
    try:
        address = socket.gethostbyname(host)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, int(port)))  # sends nothing; the kernel chooses the address to send from
            own = probe.getsockname()[0]
    except OSError as error:
        raise TrainingError(f"trainer.hosts: {RENDEZVOUS} is {given}: {error}; {form}") from error
    if address.startswith("127.") and address != host:
        raise TrainingError(
            f"trainer.hosts: {RENDEZVOUS} is {given}, and {host} means {address} here, which no other host reaches; "
            "give its IPv4 address"
        )
    return Rendezvous(host, int(port), own, _is_own(address), MEET_SECONDS)


def _is_own(address: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def torchrun_command(trainer: TrainerSection, place: Rendezvous | None, *arguments: str) -> list[str]:
    """What starts this host's processes.

    Args:
        trainer: how many hosts and processes.
        place: where hosts meet; None: this one trains alone.
        arguments: of `tasks.training.worker`.
    """
    where = ["--standalone"] if place is None else [
        f"--nnodes={trainer.hosts}", "--rdzv-backend=c10d", "--rdzv-id=nlac", f"--rdzv-endpoint={place.shown}",
        f"--rdzv-conf=is_host={int(place.is_here)},join_timeout={place.seconds}", f"--local-addr={place.own}",
    ]  # fmt: skip
    return [
        sys.executable, "-m", "torch.distributed.run", *where, f"--nproc-per-node={trainer.processes}",
        "-m", "tasks.training.worker", *arguments,
    ]  # fmt: skip


@contextmanager
def running(
    command: list[str], trainer: TrainerSection, place: Rendezvous | None, log: IO[bytes] | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """torchrun, which ends with this block, or with this process, however that ends.

    Args:
        command: its command.
        trainer: how many processes share the cores.
        place: where hosts meet.
        log: where it prints; None: where this process does.
    """
    torchrun = subprocess.Popen(
        command,
        env=_environment(trainer.processes, place),
        stdout=log,
        stderr=subprocess.STDOUT if log else None,
    )
    reaper = watch([psutil.Process(torchrun.pid)])
    try:
        yield torchrun
    finally:
        if torchrun.poll() is None:
            torchrun.terminate()
            torchrun.wait()
        assert reaper.stdin
        reaper.stdin.close()
        reaper.wait()


def _environment(processes: int, place: Rendezvous | None) -> dict[str, str]:
    """This process's own, with the program on the path, the cores divided among the processes, and gloo on the network
    in which the hosts meet: by itself it takes that of the host's name, which may be the loopback."""
    network = {} if place is None else {"GLOO_SOCKET_IFNAME": _interface(place.own)}
    return {
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // processes)),
        **network,
        **os.environ,
        "PYTHONPATH": python_path(),
    }


def _interface(address: str) -> str:
    for name, addresses in psutil.net_if_addrs().items():
        if address in {one.address for one in addresses}:
            return str(name)
    raise TrainingError(f"{platform.node()} has no network interface with its own address {address}")
