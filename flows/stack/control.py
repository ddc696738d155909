"""The local stack from the outside: start it, use it, stop it."""

import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import gethostname

from filelock import FileLock

from flows.stack.environment import PROFILE, STACK_DIR, client_environment, profiles_path, stack_dir
from flows.stack.hosts import Share
from flows.stack.joining import StackError, check_server
from flows.stack.private import make_private, make_stack_dir, stack_secret, take_secret
from flows.stack.processes import end, marked_processes
from flows.stack.record import TEMPORARY, UP, Stack, held_stack, read_stack, recorded_stack, write_stack
from schemas.load import PROJECT_ROOT
from storage.databases import MLFLOW, PREFECT, check_databases
from storage.files import make_folder
from tasks.engines.vllm import leases
from tasks.ports import free_port

USUAL_PORT = 4217
"""The port of `nlac up` where it is free; pyproject.toml names the same one for plain `prefect` commands."""


ALONE = Share()

Ahead = Callable[[str], int | None]
"""Told the address of Prefect's API before its server is started, which takes seconds. It may start a process that
uses the stack, and gives its id."""


def _refuse_another_hosts(root: Path) -> None:
    stack = held_stack(root)
    if stack is not None and stack.host != gethostname():
        raise StackError(
            f"{stack_dir(root)} is the folder of the stack on host '{stack.host}', and that stack is up; stop it "
            f"there, or set {STACK_DIR} to a folder of this host alone"
        )


@contextmanager
def used_stack(
    root: Path,
    config: Path | None,
    said: Callable[[str], None],
    ahead: Ahead = lambda _: None,
) -> Iterator[tuple[Stack, bool]]:
    """The running stack, or a server that is started, and stopped by the last that uses it.

    Args:
        root: the data root.
        config: as for `up`.
        said: told what happens.
        ahead: as for `up`, if a server is started.

    Yields:
        the stack, and whether it will be stopped, and so has no workers. Not if `nlac up` started it, or has kept it
        since.

    Raises:
        StackError: it did not come up.
    """
    folder = make_stack_dir(root)
    with FileLock(folder / "users.lock"):
        running = read_stack(root)
        if running is None:
            said("Starting a Prefect server ...")
            running = up(root, config, temporary=True, ahead=ahead)
            said(f"PREFECT_API_URL={running.api_url}  PREFECT_PROFILES_PATH={profiles_path(root)}")
        else:
            said(f"Using the local stack at {running.ui_url}")
        lease = leases.hold(folder, "iteration")
    try:
        own = (folder / TEMPORARY).exists()
        yield running if own else whole_stack(root), own
    finally:
        with FileLock(folder / "users.lock"):
            lease.unlink(missing_ok=True)
            temporary = (folder / TEMPORARY).exists()
            if temporary and users(root):
                said("Another iteration uses the local stack, and stops it in the end.")
            elif temporary:
                said("Stopping the local stack ...")
                down(root)


def users(root: Path) -> int:
    """How many commands use the stack of a data root."""
    return len(leases.live(stack_dir(root), "iteration"))


def keep_up(root: Path) -> None:
    """Have a running stack stay when the last command that uses it ends. Its workers are started then."""
    (stack_dir(root) / TEMPORARY).unlink(missing_ok=True)


def whole_stack(root: Path) -> Stack:
    """The running stack, once its workers and deployments are there.

    Raises:
        StackError: it ended before.
    """
    while (stack := read_stack(root)) is not None and stack.state != "failed":
        if stack.state == "ready":
            return stack
        time.sleep(0.2)
    logs = stack_dir(root) / "logs"
    raise StackError(f"the local stack ended: {(stack and stack.error) or f'see the logs in {logs}'}")


def usual_settings() -> dict[str, str]:
    """What plain `prefect` commands of this shell take from `tool.prefect` in pyproject.toml. Prefect reads the one of
    its working directory, so that is nothing but in the checkout."""
    settings = PROJECT_ROOT / "pyproject.toml"
    if not settings.exists() or Path.cwd() != PROJECT_ROOT:
        return {}
    prefect = tomllib.loads(settings.read_text(encoding="utf-8"))["tool"]["prefect"]
    return {
        "PREFECT_API_URL": prefect["api"]["url"],
        "PREFECT_PROFILES_PATH": str(PROJECT_ROOT / prefect["profiles_path"]),
    }


def lacking_settings(stack: Stack) -> dict[str, str]:
    """Variables without which plain `prefect` commands of this shell don't reach a stack."""
    wanted = {
        "PREFECT_API_URL": stack.api_url,
        "PREFECT_PROFILES_PATH": str(profiles_path(Path(stack.data))),
        "PREFECT_PROFILE": PROFILE,
    }
    found = {"PREFECT_PROFILE": PROFILE, **usual_settings(), **os.environ}
    return {name: value for name, value in wanted.items() if found.get(name) != value}


def up(
    root: Path,
    config: Path | None = None,
    seconds: float = 240,
    share: Share = ALONE,
    *,
    temporary: bool = False,
    ahead: Ahead = lambda _: None,
) -> Stack:
    """Start the stack and wait until it is ready.

    Args:
        root: the data root.
        config: absolute path of the configuration whose work pools are served; None: the default one.
        seconds: how long to wait.
        share: what this host starts of it.
        temporary: start the server alone, until `keep_up`.
        ahead: what to do first; see Ahead.

    Raises:
        StackError: it did not come up; every part that did is stopped again.
        DatabaseError: a database that is named can't be used; nothing was started.
        ConfigError: the secret that is given can't be used; nothing was started.
    """
    _refuse_another_hosts(root)
    check_databases(*((MLFLOW,) if share.join else (PREFECT, MLFLOW)))
    folder = make_stack_dir(root)
    given = take_secret(root)
    if share.join:
        check_server(root, share.join, given)
    stack_secret(root)
    make_private(root)
    make_folder(folder / "logs")
    if temporary:
        (folder / TEMPORARY).touch()
    else:
        keep_up(root)
    write_stack(root, None)
    try:
        port = 0 if share.join else free_port(USUAL_PORT, share.listen)
    except OSError as error:
        raise StackError(str(error)) from None
    address = Stack(pid=0, port=port, data=str(root), listen=share.listen, join=share.join).api_url
    begun = ahead(address)
    command = [sys.executable, "-m", "flows.stack.supervisor", "--data", str(root), "--port", str(port)]
    command += ["--listen", share.listen, *(["--join", share.join] if share.join else [])]
    command += [word for role in share.roles for word in ("--serve", role)]
    command += ["--spare", str(begun)] if begun else []
    with (folder / "logs" / "supervisor.log").open("ab") as log:
        process = subprocess.Popen(
            [*command, "--config", str(config)] if config else command, cwd=PROJECT_ROOT,
            env=client_environment(root, address), stdin=subprocess.DEVNULL,
            stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            stack = recorded_stack(root)
            if stack and stack.pid == process.pid and stack.state in (UP if temporary else ("ready",)):
                return stack
            if process.poll() is not None:
                reason = stack.error if stack and stack.error else f"see {folder / 'logs' / 'supervisor.log'}"
                raise StackError(f"the local stack did not start: {reason}")
            time.sleep(0.2)
        raise StackError(
            f"the local stack was not ready after {seconds:.0f} s; see the logs in {folder / 'logs'}"
        )
    except BaseException:
        _stop(process.pid, lambda: process.poll() is None)
        raise


def down(root: Path) -> bool:
    """Stop what `up` started for this data root, and nothing else; False if there was nothing of it.

    Raises:
        StackError: the stack is another host's.
    """
    _refuse_another_hosts(root)
    stack = read_stack(root)
    if stack is None:
        left = marked_processes(root)  # by a supervisor that was killed
        end(left, 5)
        return bool(left)
    _stop(stack.pid, lambda: read_stack(root) is not None)
    return True


def _stop(pid: int, alive: Callable[[], bool]) -> None:
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return
    while alive():
        time.sleep(0.1)
