"""Finds, starts, puts to sleep and wakes vLLM servers; `tasks.engines.vllm.server_supervisor` owns each.

<cache>/servers/<digest>/   one server; the digest covers everything that tells servers apart
    lock            held while a server starts or is given up
    leases/         one file per lease (`tasks.engines.vllm.leases`)
    server.json     supervisor, port, state and weights; it holds the API key, so only its user can read it
    server.log      output of vLLM; server.log.before: of the previous start
    supervisor.log  output of the supervisor
    starts.jsonl    one line per successful start, with its seconds

A server starts when a request first needs it. Servers listen on 127.0.0.1: each host that runs stages has its own.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from filelock import FileLock

from schemas.config import EngineSection, ModelSection
from schemas.load import PROJECT_ROOT
from storage.guard import SECRET, RequireSecret
from tasks.chat.messages import RequestError
from tasks.engines.models import resolve_model
from tasks.engines.protocol import Adapter, EngineDied
from tasks.engines.vllm import leases
from tasks.engines.vllm.server_records import (
    OWN,
    POLL_SECONDS,
    Server,
    await_turn,
    end,
    read_server,
    server_dir,
    servers,
)
from tasks.engines.vllm.settings import engine_arguments, private_variables
from tasks.loopback import open_loopback
from tasks.ports import free_port

SLEEP_LEVEL = 1  # moves the weights to main memory and drops the KV cache
CALL_SECONDS = 120.0
GUARD = f"{RequireSecret.__module__}.{RequireSecret.__qualname__}"
SUPERVISOR_SECONDS = 30.0  # time limit for its first server.json
SILENCE_SECONDS = 120.0  # a server that gives no answer to /health for this long is ended


def acquire(
    section: EngineSection, model: ModelSection, cache_dir: Path, checkpoint: Adapter | None = None
) -> tuple[Server, Path]:
    """A server that answers, started or woken if need be, and this process's lease on it.

    Args:
        section: of the engine.
        model: in training.
        cache_dir: of the data root.
        checkpoint: whose weights it serves where `model.train` is full; None: the model's own. A server with others
            ends first, once no stage holds a lease on it.

    Raises:
        EngineDied: the server does not start, or one of before does not end; the message names its log.
    """
    folder = server_dir(section, model, cache_dir)
    weights = _weights(model, checkpoint)
    # A lease that waits for its turn would keep others from theirs.
    lease = None if weights else leases.hold(folder, "stage")
    try:
        with _turn(cache_dir) if weights else nullcontext():
            await_turn(folder, weights)
            lease = lease or leases.hold(folder, "stage")
            with FileLock(folder / "lock"):
                if read_server(folder) is None:
                    _start(section, model, cache_dir, folder, checkpoint)
                server = _ready(folder)
        if server.sleeps and _call(server, "GET", "/is_sleeping")["is_sleeping"]:
            _call(server, "POST", "/wake_up")
    except BaseException:
        if lease is not None:
            lease.unlink(missing_ok=True)
        raise
    return server, lease


def _turn(cache_dir: Path) -> FileLock:
    """Held while weights of this host are replaced."""
    cache_dir.mkdir(parents=True, exist_ok=True)
    return FileLock(cache_dir / f"weights-{leases.host()}.lock")


def _weights(model: ModelSection, checkpoint: Adapter | None) -> str:
    """What a server records as its weights."""
    if model.train == "lora":
        return ""
    return checkpoint.digest if checkpoint else OWN


def _start(
    section: EngineSection,
    model: ModelSection,
    cache_dir: Path,
    folder: Path,
    checkpoint: Adapter | None,
) -> None:
    import torch

    weights = _weights(model, checkpoint)
    serve, base = section.serve, resolve_model(model)
    assert serve is not None
    cuda = torch.cuda.is_available()
    sleeps = not weights and (serve.sleep if serve.sleep is not None else cuda)
    served = checkpoint.path if checkpoint else base
    arguments = engine_arguments(section, model, base, served, lora=not weights)
    arguments |= {"enable_sleep_mode": True} if sleeps and cuda else {}
    port = free_port(0)
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port),
        "--served-model-name", "base", "--disable-uvicorn-access-log", "--middleware", GUARD,
        *command_line(arguments),
    ]  # fmt: skip
    key = secrets.token_urlsafe(24)
    environment = {
        **os.environ,
        **private_variables(cache_dir),
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        "VLLM_SERVER_DEV_MODE": "1" if sleeps else "0",  # /sleep and /wake_up
        "VLLM_API_KEY": key,  # asked for below /v1 alone
        SECRET: key,
    }
    launch(folder, port, serve.start_seconds, command, environment, sleeps=sleeps, weights=weights)


def launch(
    folder: Path,
    port: int,
    seconds: float,
    command: list[str],
    environment: dict[str, str],
    *,
    sleeps: bool,
    weights: str = "",
) -> None:
    """Start a supervisor, which starts a server; returns once the supervisor has recorded it. A lease must be held.

    Args:
        folder: of the server.
        port: on 127.0.0.1, where the server will answer /health.
        seconds: time limit of the start.
        command: of the server.
        environment: its variables.
        sleeps: whether training stages put it to sleep.
        weights: that it has; see Server.
    """
    times = (str(seconds), str(SILENCE_SECONDS))
    supervisor = [
        sys.executable,
        "-m",
        "tasks.engines.vllm.server_supervisor",
        str(folder),
        str(port),
        *times,
    ]
    with (folder / "supervisor.log").open("ab") as log:
        # It detaches at once, so it is no child of this process.
        subprocess.run(
            [*supervisor, "sleeps" if sleeps else "stays", weights, *command], cwd=PROJECT_ROOT, env=environment,
            check=True, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    deadline = time.monotonic() + SUPERVISOR_SECONDS
    while read_server(folder) is None and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)


def command_line(arguments: dict[str, Any]) -> Iterable[str]:
    """Arguments of vLLM's engine as options of its command; None is left out."""
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            yield f"--{flag}" if value else f"--no-{flag}"
        elif isinstance(value, list):
            yield from (f"--{flag}", *map(str, value))
        elif value is not None:
            yield f"--{flag}={json.dumps(value) if isinstance(value, dict) else value}"


def _ready(folder: Path) -> Server:
    while (server := read_server(folder)) is not None:
        if server.state == "ready":
            return server
        time.sleep(POLL_SECONDS)
    raise EngineDied(
        f"the vLLM server does not start (engines.<name>.serve): {last_error(folder)}; see {folder / 'server.log'}"
    )


def last_error(folder: Path) -> str:
    """The last line of a server's log that reports an error, or else the last line."""
    log = folder / "server.log"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    errors = [line for line in lines if "Error" in line or "error:" in line]
    return (errors or lines or ["it said nothing"])[-1].strip()


def put_to_sleep(cache_dir: Path) -> list[str]:
    """Have servers free their memory for a training stage, except those that a stage is using. The next stage that
    needs a server wakes it. One with a full checkpoint ends: what follows training asks for another.

    Returns:
        One line per server that failed to sleep.

    Raises:
        EngineDied: a server with a full checkpoint does not end.
    """
    failed = []
    for folder, server in servers(cache_dir):
        if server.weights and not leases.live(folder, "stage"):
            end(server)
            continue
        if server.state == "ready" and server.sleeps and not leases.live(folder, "stage"):
            try:
                _call(server, "POST", f"/sleep?level={SLEEP_LEVEL}&mode=wait")
            except RequestError as error:
                failed.append(str(error))
    return failed


def answers(server: Server) -> bool:
    """Whether a server answers /health."""
    try:
        _call(server, "GET", "/health", seconds=5)
    except RequestError:
        return False
    return True


def _call(server: Server, method: str, path: str, seconds: float = CALL_SECONDS) -> Any:
    request = urllib.request.Request(
        server.root_url + path, headers={"Authorization": f"Bearer {server.key}"}, method=method
    )
    try:
        with open_loopback(request, seconds) as answer:
            return json.loads(answer.read() or "null")
    except OSError as error:
        raise RequestError(f"the vLLM server at {server.root_url} does not answer {path}: {error}") from error


@contextmanager
def serving(
    engines: Iterable[EngineSection], model: ModelSection, cache_dir: Path, stack: int | None = None
) -> Iterator[None]:
    """Hold leases on the servers of these engines for an iteration.

    Args:
        engines: sections of the engines in use; those without `serve` are ignored.
        model: the model in training.
        cache_dir: of the data root.
        stack: pid of the local stack's supervisor. The servers then outlive the iteration, until the stack ends or an
            iteration needs other servers. None: they end with the iteration.
    """
    folders = [server_dir(section, model, cache_dir) for section in engines if section.serve is not None]
    held = [leases.hold(folder, "iteration") for folder in folders]
    if stack is not None and folders:
        for other in (cache_dir / "servers").glob("*"):
            for lease in leases.live(other, "stack"):
                lease.unlink(missing_ok=True)
        for folder in folders:
            leases.hold(folder, "stack", stack)
    try:
        yield
    finally:
        for lease in held:
            lease.unlink(missing_ok=True)
