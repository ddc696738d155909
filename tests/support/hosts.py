"""Hosts in namespaces of the kernel: each has its own network, processes, name and private folder. Needs root.

All hosts reach the address of the first, and one another through it. They read the machine's files, such as the
program. What they write lies in a file system of their own: the private folder, which has the same path on each host
and another content.
"""

import ctypes
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.support.waiting import wait_until

FIRST = "10.77.0.1"
"""The address of the first host, which exists within the namespaces alone."""

_INIT = """
import signal, socket, subprocess, sys
from pathlib import Path
name, private = sys.argv[1:]
socket.sethostname(name)
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", private], check=True)
for folder in ("home", "stack", "tmp"):
    Path(private, folder).mkdir(mode=0o700)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # orphans are reaped
Path(private, "ready").touch()
signal.pause()
"""


def lacking() -> str | None:
    """Why hosts can't be made here; None where they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [name for name in ("ip", "unshare", "nsenter", "mount") if shutil.which(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (iproute2, util-linux)"
    probe = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "--uts", "true"], capture_output=True, text=True
    )
    return None if probe.returncode == 0 else f"the kernel gives no namespaces here: {probe.stderr.strip()}"


@dataclass(frozen=True)
class Host:
    """A host.

    Attributes:
        name: its name.
        network: name of its network namespace.
        init: its first process; all others end with it.
        private: the folder that is its own.
        variables: of the environment of its commands.
    """

    name: str
    network: str
    init: psutil.Process
    private: Path
    variables: Mapping[str, str]

    def start(self, *command: str) -> "subprocess.Popen[str]":
        """Start a command on the host."""
        enter = ["nsenter", "--target", str(self.init.pid), "--net", "--mount", "--pid", "--uts"]
        own = {name: str(self.private / name.lower()) for name in ("HOME",)}
        own |= {"TMPDIR": str(self.private / "tmp"), "NLAC_STACK_DIR": str(self.private / "stack")}
        own |= {"NLAC_MIRROR": str(self.private / "mirror")}
        return subprocess.Popen(
            [*enter, *command], env={**self.variables, **own}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def nlac(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start a command `nlac` on the host."""
        return self.start(sys.executable, "-m", "flows.cli", *arguments)

    def listening(self, address: str) -> socket.socket:
        """A socket of this process that listens in the host's network, on a free port."""
        made = []

        def listen() -> None:
            """A thread may enter a network by itself; a socket stays in the one where it was made."""
            with Path(f"/proc/{self.init.pid}/ns/net").open() as network:
                assert ctypes.CDLL(None, use_errno=True).setns(network.fileno(), 0) == 0, os.strerror(
                    ctypes.get_errno()
                )
            made.append(socket.create_server((address, 0), backlog=128))

        entering = threading.Thread(target=listen)
        entering.start()
        entering.join()
        return made[0]

    def kill(self) -> None:
        """End all its processes at once, as a power cut would."""
        self.init.kill()
        wait_until(lambda: not self.init.is_running(), 30, f"the end of {self.name}")


def done(command: "subprocess.Popen[str]") -> str:
    """What a command said, once it has succeeded."""
    said, _ = command.communicate()
    assert command.returncode == 0, said
    return said


@contextmanager
def hosts(names: Sequence[str], base: Path, variables: Mapping[str, str]) -> Iterator[list[Host]]:
    """Make hosts, and remove them in the end with all their processes.

    Args:
        names: of the hosts; the first has the address FIRST.
        base: a folder for what they need.
        variables: environment of their commands.
    """
    private = base / "private"
    private.mkdir()
    networks = [f"nlac-{os.getpid()}-{name}" for name in names]
    started: list[subprocess.Popen[bytes]] = []
    made: list[Host] = []
    try:
        for number, (name, network) in enumerate(zip(names, networks, strict=True)):
            _connect(number, networks[0], network)
            unshare = ["unshare", "--fork", "--kill-child", "--pid", "--mount", "--mount-proc", "--uts"]
            init = [sys.executable, "-c", _INIT, name, str(private)]
            command = ["ip", "netns", "exec", network, *unshare, *init]
            started.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
            found = psutil.Process(started[-1].pid)
            wait_until(lambda found=found: found.children(), 30, f"the first process of {name}")
            (first,) = found.children()
            ready = Path(f"/proc/{first.pid}/root{private}/ready")
            wait_until(ready.exists, 30, f"the start of {name}")
            made.append(Host(name, network, first, private, variables))
        yield made
    finally:
        for process in started:
            process.kill()  # and with it the first process of the host (--kill-child)
            process.wait()
        for network in networks:
            subprocess.run(["ip", "netns", "delete", network], check=False, capture_output=True)


def _connect(number: int, first: str, network: str) -> None:
    """Make a network namespace, and connect it with the first one."""

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True)

    ip("netns", "add", network)
    ip("-n", network, "link", "set", "lo", "up")
    if number == 0:
        ip("-n", network, "address", "add", f"{FIRST}/32", "dev", "lo")
        return
    there, here = f"10.77.{number}.1", f"10.77.{number}.2"
    link = f"host{number}"
    ip("-n", first, "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", network)
    ip("-n", first, "address", "add", f"{there}/24", "dev", link)
    ip("-n", first, "link", "set", link, "up")
    ip("-n", network, "address", "add", f"{here}/24", "dev", "eth0")
    ip("-n", network, "link", "set", "eth0", "up")
    ip("-n", network, "route", "add", "default", "via", there)
