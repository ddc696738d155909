"""`nlac doctor`: whether this machine has what a run needs, and what to do where it has not."""

import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import typer

from flows.cli.options import FAILED, ConfigFile, Data, ListAs, ListFormat, load, say, say_json
from schemas.load import PROJECT_ROOT, ConfigError, data_root

OLDEST_PYTHON = (3, 11)
DISK_GB, MEMORY_GB = 5.0, 6.6  # of the default iteration in float32 (docs/benchmarks.md)


@dataclass(frozen=True)
class Finding:
    """What was found. `remedy` is there where it is not as it should be.

    Attributes:
        state: ok; note: runs will work, perhaps slowly; bad: they will not.
    """

    state: Literal["ok", "note", "bad"]
    said: str
    remedy: str = ""


def python(root: Path, config: Path | None) -> Iterator[Finding]:
    """The version of Python."""
    said = ".".join(map(str, sys.version_info[:3]))
    old = sys.version_info < OLDEST_PYTHON
    yield Finding(
        "bad" if old else "ok", said, "install Python 3.11 or newer, and make .venv again" if old else ""
    )


def packages(root: Path, config: Path | None) -> Iterator[Finding]:
    """Installed packages against constraints.txt."""
    from importlib.metadata import PackageNotFoundError, version

    pins = PROJECT_ROOT / "constraints.txt"
    if not pins.exists():
        yield Finding("note", "constraints.txt is not here, so versions are not compared")
        return
    lines = (
        line.split("#")[0].partition(";")[0].strip() for line in pins.read_text(encoding="utf-8").splitlines()
    )
    wanted = dict(line.split("==") for line in lines if "==" in line)
    other = []
    for name, pinned in wanted.items():
        try:
            found = version(name)
        except PackageNotFoundError:
            continue  # an extra that is not installed
        if found.partition("+")[0] != pinned.partition("+")[0]:
            other.append(f"{name} {found}, not {pinned}")
    remedy = "" if not other else "pip install -c constraints.txt -e . puts the tested versions in place"
    yield Finding("note" if other else "ok", "; ".join(other[:5]) or "as in constraints.txt", remedy)


def processor(root: Path, config: Path | None) -> Iterator[Finding]:
    """Cores, and what speeds bfloat16 up."""
    info = Path("/proc/cpuinfo")
    flags = set(info.read_text(encoding="utf-8").split()) if info.exists() else set()
    fast = [name for name in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if name in flags]
    remedy = (
        "" if flags & {"avx2", "asimd"} else "matrix products will be slow; use a newer machine, or a GPU"
    )
    said = f"{os.cpu_count()} cores, {', '.join(fast) or 'no vector extensions that are known'}"
    yield Finding("note" if remedy else "ok", said, remedy)


def gpu(root: Path, config: Path | None) -> Iterator[Finding]:
    """A GPU that torch can use."""
    import torch

    if torch.cuda.is_available():
        memory = torch.cuda.get_device_properties(0).total_memory / 1e9
        yield Finding("ok", f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}, {memory:.0f} GB")
    elif shutil.which("nvidia-smi"):
        yield Finding(
            "bad", "there is one that torch can't use", "install a torch for this CUDA driver (nvidia-smi)"
        )
    else:
        yield Finding("ok", "none; models run on the CPU")


def memory(root: Path, config: Path | None) -> Iterator[Finding]:
    """Free memory."""
    import psutil

    free = psutil.virtual_memory().available / 1e9
    low = free < MEMORY_GB
    remedy = "end other programs, or lower micro_batch_rows and engines.local.max_batch" if low else ""
    yield Finding("note" if low else "ok", f"{free:.1f} GB free", remedy)


def disk(root: Path, config: Path | None) -> Iterator[Finding]:
    """Free disk, and whether the data root can be written."""
    existing = next(path for path in (root, *root.parents) if path.is_dir())
    free = shutil.disk_usage(existing).free / 1e9
    if not os.access(existing, os.W_OK | os.X_OK):
        yield Finding(
            "bad", f"{existing} can't be written to", "choose another data root with --data or NLAC_DATA"
        )
    low = free < DISK_GB
    remedy = f"nlac gc --data {root} says what can go; or choose another data root" if low else ""
    yield Finding("note" if low else "ok", f"{free:.1f} GB free at {root}", remedy)


def bucket(root: Path, config: Path | None) -> Iterator[Finding]:
    """The bucket that the data root mirrors, if it does."""
    from schemas.data_url import url_of
    from storage.store import Store, StoreError

    url = url_of(root)
    if url is None:
        yield Finding("ok", "none; the data root is a folder")
        return
    try:
        yield Finding("ok", f"{url} answers; {len(Store(root).runs())} runs; its mirror is {root}")
    except (ConfigError, StoreError) as error:
        yield Finding("bad", f"{url} can't be read", str(error))


def model(root: Path, config: Path | None) -> Iterator[Finding]:
    """The model of the configuration, and the cache of converted ones."""
    from tasks.engines.models import ModelError, check_model, model_cache

    chosen, cache = load(config), model_cache()
    try:
        check_model(chosen.model)
    except ModelError as error:
        yield Finding("bad", f"{chosen.model.name} can't be found", str(error))
        return
    existing = next(path for path in (cache, *cache.parents) if path.is_dir())
    if not os.access(existing, os.W_OK | os.X_OK):
        yield Finding(
            "bad", f"the model cache {cache} can't be written to", "set NLAC_MODEL_CACHE to another folder"
        )
    converted = chosen.model.name.startswith("package:") and not any(cache.glob("*/config.json"))
    yield Finding("ok", f"{chosen.model.name}" + (", converted at its first use" if converted else ""))


def stack(root: Path, config: Path | None) -> Iterator[Finding]:
    """The local stack, and its port."""
    from flows.stack.control import USUAL_PORT
    from flows.stack.environment import stack_dir
    from flows.stack.record import read_stack

    running = read_stack(root)
    if running is not None:
        failed = running.state == "failed"
        remedy = (
            f"nlac down --data {root}, then nlac up; its logs are in {stack_dir(root) / 'logs'}"
            if failed
            else ""
        )
        yield Finding("bad" if failed else "ok", f"{running.state}, at {running.ui_url}", remedy)
        return
    remedy = "nlac up takes another port and prints it; `prefect` commands then need PREFECT_API_URL"
    yield _port(USUAL_PORT, "not up; ", "another program", remedy)


def mlflow(root: Path, config: Path | None) -> Iterator[Finding]:
    """The port of MLflow's pages."""
    from storage.mlflow.server import USUAL_PORT

    remedy = "if it is not yours, nlac mlflow-ui takes another port and prints it; Prefect's links to MLflow miss it"
    yield _port(USUAL_PORT, "", "an nlac mlflow-ui or another program", remedy)


def _port(number: int, before: str, by: str, remedy: str) -> Finding:
    """Whether a port is free."""
    with socket.socket() as probe:
        taken = probe.connect_ex(("127.0.0.1", number)) == 0
    said = f"{before}port {number} is {f'taken by {by}' if taken else 'free'}"
    return Finding("note" if taken else "ok", said, remedy if taken else "")


def databases(root: Path, config: Path | None) -> Iterator[Finding]:
    """Where Prefect and MLflow keep their records."""
    from schemas.load import ConfigError
    from storage.databases import MLFLOW, PREFECT, DatabaseError, database

    for variable in (PREFECT, MLFLOW):
        try:
            if (known := database(variable)) is not None:
                known.check()
            yield Finding(
                "ok", f"{variable}: {known.shown if known else 'not set, so SQLite below the data root'}"
            )
        except (ConfigError, DatabaseError) as error:
            yield Finding("bad", f"{variable}: it can't be used", str(error))


def access(root: Path, config: Path | None) -> Iterator[Finding]:
    """Whether other users of the machine can read the data root, and what nobody else should."""
    from flows.stack.private import exposed

    if not root.exists():
        yield Finding("ok", "the data root is not there yet; it will be yours alone")
        return
    mode = root.stat().st_mode & 0o777
    remedy = f"chmod 700 {root}, unless they are to read its texts" if mode & 0o077 else ""
    said = f"the data root has mode {mode:o}"
    yield Finding("note" if remedy else "ok", said + (": others can enter it" if remedy else ""), remedy)
    for path in exposed(root):
        yield Finding(
            "note", f"{path} is open to other users", f"chmod go= {path}; the next nlac up does so too"
        )


CHECKS: tuple[Callable[[Path, Path | None], Iterator[Finding]], ...] = (
    python, packages, processor, gpu, memory, disk, access, bucket, model, databases, stack, mlflow,
)  # fmt: skip


def doctor(config: ConfigFile = None, format: ListAs = ListFormat.table, data: Data = None) -> None:
    """Check this machine: Python, packages, processor, GPU, memory, disk, access, bucket, model, databases, stack and
    MLflow's port, each with its remedy."""
    root, found = data_root(data), []
    for check in CHECKS:
        for finding in check(root, config):
            found.append({"check": check.__name__, **asdict(finding)})
            if format is ListFormat.json:
                continue
            say(f"{finding.state:<4}  {check.__name__:<9}  {finding.said}")
            if finding.remedy:
                say(f"{'':<17}{finding.remedy}")
    if format is ListFormat.json:
        say_json(found)
    if any(finding["state"] == "bad" for finding in found):
        raise typer.Exit(FAILED)
