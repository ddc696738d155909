"""The process that owns this host's stack: a Prefect server, one worker per pool, and the deployments.

On a host that joins another's server it owns workers alone. The stack of one `nlac iterate` is the server alone, until
`nlac up` keeps it.

`nlac up` starts it detached as `python -m flows.stack.supervisor`. On SIGTERM (`nlac down`) it stops all that it
started, also descendants in sessions of their own. It holds `<data>/.stack/lock` while it lives, which tells others
that the stack is up, and writes what it started to `<data>/.stack/stack.json`.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Event

import psutil
from filelock import FileLock

from flows.stack.api import ask
from flows.stack.control import ALONE
from flows.stack.environment import service_environment, stack_dir
from flows.stack.hosts import LOOK_SECONDS, LOOPBACK, ROLES, GoneWorkers, Share, worker_name
from flows.stack.joining import StackError
from flows.stack.processes import become_subreaper, end, listens, marked_processes
from flows.stack.record import TEMPORARY, Stack, write_stack
from flows.stack.service import Service
from schemas.load import PROJECT_ROOT, load_config
from storage.databases import PREFECT, database
from storage.store import Store
from tasks.engines.vllm.server_records import servers
from tasks.loopback import open_loopback

ORPHAN_GRACE_SECONDS = 5.0
SETTLE_SECONDS = 10.0  # from a service's death, in which its orphans end, and between two looks for lost runs
GPU_ROLES = ("inference", "training")  # a worker of theirs runs one stage at a time
LOG_BYTES = 16 << 20  # of a log, and of what was before it
_PREFECT = [sys.executable, "-m", "prefect"]
_SERVER_ENVIRONMENT = {
    # Workers that poll every second make the server's bookkeeping collide on SQLite. It tries again, but its task
    # library would log a traceback each time, some 100 MB per hour. Prefect's own loggers are not affected.
    "PREFECT_LOGGING_ROOT_LEVEL": "CRITICAL",
    "PREFECT_SERVER_API_CSRF_PROTECTION_ENABLED": "true",
}


class Supervisor:
    """Starts, watches and stops the stack of one data root.

    Args:
        root: the data root.
        port: port of the Prefect server.
        config: configuration whose pools are served; None: the default one.
        share: what this host starts of the stack.
        spare: id of a process that was started for this stack before it.
    """

    def __init__(
        self, root: Path, port: int, config: Path | None, share: Share = ALONE, spare: int | None = None
    ) -> None:
        self.root, self.port, self.config, self.share, self.spare = root, port, config, share, spare
        self.stack = Stack(pid=os.getpid(), port=port, data=str(root), listen=share.listen, join=share.join)
        self.environment = service_environment(root, self.stack.api_url)
        self.services: dict[str, Service] = {}
        self.stopping = Event()
        self._orphans: dict[int, float] = {}
        self._unsettled: float | None = None  # when to look for lost runs (monotonic seconds)
        self._settling: subprocess.Popen[bytes] | None = None
        self._hosts, self._next_look = GoneWorkers(), 0.0  # monotonic seconds
        self._gone: set[str] = set()

    def spawn(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        """Start a child with a log, in a session of its own: Ctrl-C in the user's terminal does not reach it."""
        environment, umask = self.environment, -1
        if name == "server":
            own_pages = [f"http://{name}:{self.port}" for name in (LOOPBACK, "localhost", self.share.listen)]
            environment = environment | _SERVER_ENVIRONMENT
            environment["PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS"] = ",".join(dict.fromkeys(own_pages))
            if (kept_in := database(PREFECT)) is not None:
                environment["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = kept_in.for_prefect
            umask = 0o077  # its database is its user's alone
        log = stack_dir(self.root) / "logs" / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as sink:
            return subprocess.Popen(
                command, cwd=PROJECT_ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=sink,
                stderr=subprocess.STDOUT, start_new_session=True, umask=umask,
            )  # fmt: skip

    def keep(self, name: str, command: list[str]) -> None:
        """Start a child that is started again if it dies."""
        self.services[name] = Service(command, self.spawn(name, command))

    def once(self, name: str, command: list[str]) -> None:
        """Run a command to its end.

        Raises:
            StackError: it failed; the message names its log.
        """
        child = self.spawn(name, command)
        while child.poll() is None:
            if self.stopping.wait(0.1):
                child.terminate()
        if child.returncode:
            raise StackError(f"{name} failed; see {stack_dir(self.root) / 'logs' / name}.log")

    def wait_for_server(self, seconds: float) -> None:
        """Wait until our own server answers. Another stack may have taken the same port at the same time, and would
        get our workers.

        Raises:
            StackError: it died, or did not answer in time.
        """
        log = stack_dir(self.root) / "logs" / "server.log"
        deadline = time.monotonic() + seconds
        while not self.stopping.wait(0.2):
            if self.services["server"].child.poll() is not None:
                raise StackError(f"the Prefect server ended at once; see {log}")
            with (
                suppress(OSError),
                open_loopback(f"{self.stack.api_url}/health", 2),
            ):
                if listens(self.services["server"].child.pid, self.port):
                    return
            if time.monotonic() > deadline:
                raise StackError(f"the Prefect server did not answer within {seconds:.0f} s; see {log}")

    @property
    def _provision(self) -> list[str]:
        command = [sys.executable, "-m", "flows.stack.provision"]
        return [*command, "--config", str(self.config)] if self.config else command

    def prepare(self) -> None:
        """Start the server, unless it is another host's, and make it ready for workers.

        Raises:
            StackError: it did not come up.
        """
        write_stack(self.root, self.stack)
        # What a supervisor that was killed has left is ended. Two servers would share one database, and not the events
        # in memory that a command waits for.
        end([p for p in marked_processes(self.root) if p.pid != self.spare], 5)
        if self.share.join is None:
            serve = [*_PREFECT, "server", "start", "--host", self.share.listen, "--port", str(self.port)]
            self.keep("server", serve)
            self.wait_for_server(120)
        self.once("provision", self._provision)

    def start(self) -> None:
        """Start everything, each part after those that it needs; of a temporary stack the server alone.

        Raises:
            StackError: a part did not come up.
        """
        self.prepare()
        self._is("server")
        self.complete()

    def complete(self) -> None:
        """Start workers and deployments, unless they are there or the stack is a temporary one.

        Raises:
            StackError: a part did not come up.
        """
        if self.stack.state != "server" or (stack_dir(self.root) / TEMPORARY).exists():
            return
        pools = load_config(self.config).pools
        for role in self.share.roles:
            limit = ["--limit", "1"] if role in GPU_ROLES else []
            work = ["worker", "start", "--pool", getattr(pools, role), "--name", worker_name(role), *limit]
            self.keep(f"worker-{role}", [*_PREFECT, *work])
        if self.share.join is None:
            self.once("deploy", [*_PREFECT, "--no-prompt", "deploy", "--all"])
        self._is("ready")

    def _is(self, state: str) -> None:
        if not self.stopping.is_set():
            self.stack = self.stack.model_copy(update={"state": state})
            write_stack(self.root, self.stack)

    def watch(self) -> None:
        """Until told to stop, start children again that died, end orphans, and bound the logs.

        Raises:
            StackError: a stack that is kept can't be completed.
        """
        while not self.stopping.wait(1.0):
            self.complete()
            self.revive(time.monotonic())
            self.reap_orphans()
            self.look_for_gone_hosts(time.monotonic())
            self.settle(time.monotonic())
            self.bound_logs()

    def revive(self, now: float) -> None:
        """Start services again that died, each after its wait; `now` in monotonic seconds."""
        for name, service in self.services.items():
            if service.is_due(now):
                child = self.spawn(name, service.command)
                self.services[name] = Service(service.command, child, now, deaths=service.deaths)
                self._unsettled = now + SETTLE_SECONDS

    def look_for_gone_hosts(self, now: float) -> None:
        """Where the stack has several hosts, have the runs of those ended whose heartbeats have; `now` in monotonic
        seconds."""
        if self.share.is_alone or now < self._next_look:
            return
        self._next_look = now + LOOK_SECONDS
        pools = load_config(self.config).pools
        online: dict[str, bool] = {}
        with suppress(OSError):  # the server is away for now
            for role in ROLES:
                for worker in ask(self.stack, f"/work_pools/{getattr(pools, role)}/workers/filter", {}, 3.0):
                    online[worker["name"]] = worker["status"] == "ONLINE"
            if gone := self._hosts.look(online):
                self._gone, self._unsettled = gone, now

    def settle(self, now: float) -> None:
        """After a service has died, have flow runs ended that were lost by that (`flows.stack.provision`), until none
        is in doubt; `now` in monotonic seconds."""
        if self._settling is not None:
            if self._settling.poll() is None:
                return
            if self._settling.returncode:
                self._unsettled = now + SETTLE_SECONDS
            self._settling = None
        elif self._unsettled is not None and now >= self._unsettled:
            self._unsettled = None
            gone = [word for name in sorted(self._gone) for word in ("--gone", name)]
            self._settling = self.spawn("lost-runs", [*self._provision, "--lost", *gone])

    def bound_logs(self) -> None:
        """Put a log that has grown too long aside, over the one before it. Its writer appends, so it goes on."""
        for log in (stack_dir(self.root) / "logs").glob("*.log"):
            if log.stat().st_size > LOG_BYTES:
                shutil.copyfile(log, log.with_name(f"{log.name}.before"))
                os.truncate(log, 0)

    def reap_orphans(self) -> None:
        """End processes whose parent is gone, such as a vLLM engine of a stage that was killed."""
        own = {service.child.pid for service in self.services.values()}
        own |= {self._settling.pid} if self._settling else set()
        # The supervisors of vLLM servers leave their parents on purpose, and end when no process needs them.
        own |= {server.supervisor for _, server in servers(Store(self.root).cache_dir)}
        orphans = [p for p in psutil.Process().children() if p.pid not in own]
        now = time.monotonic()
        self._orphans = {p.pid: self._orphans.get(p.pid, now) for p in orphans}
        # Some notice by themselves that their parent is gone, and get a moment to do so.
        end([p for p in orphans if now - self._orphans[p.pid] > ORPHAN_GRACE_SECONDS], 5)
        for process in orphans:
            if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
                try:
                    os.waitpid(process.pid, os.WNOHANG)
                except ChildProcessError:
                    continue

    def stop(self) -> None:
        """Stop the workers, which end their flow runs, then the server, then all that is left."""
        children = {
            name: psutil.Process(service.child.pid)
            for name, service in self.services.items()
            if service.child.poll() is None
        }
        end([p for name, p in children.items() if name != "server"], 15)
        end([p for name, p in children.items() if name == "server"], 15)
        end(marked_processes(self.root), 5)


def main() -> None:
    """Own the stack until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--listen", default=LOOPBACK)
    parser.add_argument("--join")
    parser.add_argument("--serve", action="append", choices=ROLES)
    parser.add_argument("--spare", type=int)
    args = parser.parse_args()
    share = Share(args.listen, args.join, tuple(args.serve or ROLES))
    with FileLock(stack_dir(args.data) / "lock", timeout=0):
        become_subreaper()
        supervisor = Supervisor(args.data, args.port, args.config, share, args.spare)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: supervisor.stopping.set())
        try:
            supervisor.start()
            supervisor.watch()
        except StackError as error:
            supervisor.stack = supervisor.stack.model_copy(update={"state": "failed", "error": str(error)})
        finally:
            supervisor.stop()
            write_stack(args.data, supervisor.stack if supervisor.stack.state == "failed" else None)


if __name__ == "__main__":
    main()
