"""A disk that is full at each stage, and one that is read-only: a small tmpfs, which needs root."""

import asyncio
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from benchmarks.reliability.small_run import run_config
from flows.cli.main import app
from schemas.config import Config
from storage.store import Store
from storage.verify import verify
from tasks.pipeline.iterations import begin_iteration, finish_iteration, run_iteration
from tasks.pipeline.registry import stages_of
from tasks.pipeline.runner import run_stage

DISK_MB = 64
LEFT = (0, 4 << 10, 16 << 10, 64 << 10, 256 << 10)
"""Bytes that are left free when a stage begins: it fails earlier or later."""


class NoMount(Exception):
    """A tmpfs can't be mounted here; the message says why."""


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of DISK_MB.

    Raises:
        NoMount: this user may not mount one.
    """
    disk = folder / "disk"
    disk.mkdir()
    mounted = _mount("-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(disk))
    if mounted.returncode:
        raise NoMount(f"a tmpfs can't be mounted: {mounted.stderr.strip()}; run as root")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def _mount(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["mount", *arguments], capture_output=True, text=True)


@contextmanager
def filled(disk: Path, left: int) -> Iterator[None]:
    """Leave only so many bytes free."""
    filler, state = disk / "filler", os.statvfs(disk)
    with filler.open("wb") as handle:
        os.posix_fallocate(handle.fileno(), 0, max(1, state.f_bavail * state.f_frsize - left))
    try:
        yield
    finally:
        filler.unlink()


def digests(store: Store, config: Config, iteration: int = 0) -> dict[str, str]:
    """Stage and table -> digest, of all that is current."""
    return {
        f"{stage}.{table}": entry.digest
        for stage in stages_of(config, iteration)
        if (made := store.committed(config.run, stage, iteration))
        for table, entry in made.manifest.tables.items()
    }


def fill_disk(folder: Path, **changes: Any) -> dict[str, Any]:
    """Fill the disk before each stage, at several levels; then make room, and run the stage again.

    Args:
        folder: where all of it lies.
        changes: of the run's configuration.

    Raises:
        AssertionError: a stage left something behind, or the run is not the undisturbed one.
        NoMount: as `small_disk`.
    """
    with small_disk(folder) as disk:
        config, store, whole = run_config(**changes), Store(disk / "data"), Store(folder / "whole")
        asyncio.run(run_iteration(whole, config))
        failed: Counter[str] = Counter()
        kinds: Counter[str] = Counter()
        begin_iteration(store, config, 0)
        for stage in stages_of(config, 0):
            for left in LEFT:
                with filled(disk, left):
                    try:
                        asyncio.run(run_stage(store, config, stage, 0))
                    except Exception as error:  # noqa: BLE001 - libraries have their own for a full disk
                        said = f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
                        kinds[said.replace(str(folder), "")] += 1
                        failed[stage] += 1
                        assert "No space left" in str(error), f"{stage}: {said}"
                    else:
                        break
                assert store.committed(config.run, stage, 0) is None, f"{stage} is visible though it failed"
                assert verify(store) == [], verify(store)
                staged = list((store.run_dir(config.run) / ".staging").glob("*"))
                assert not staged, f"{stage} left {staged}"
            asyncio.run(run_stage(store, config, stage, 0))
        finish_iteration(store, config.run, 0)
        assert digests(store, config) == digests(whole, config), "another outcome than without a fault"
        assert verify(store) == []
    return {"failures": failed.total(), "by stage": dict(failed), "errors": dict(kinds)}


def read_only(folder: Path) -> dict[str, Any]:
    """Run commands on a data root that can't be written.

    Raises:
        AssertionError: a command that only reads failed, or one that writes has a traceback.
        NoMount: as `small_disk`.
    """
    with small_disk(folder) as disk:
        config, root = run_config(), disk / "data"
        asyncio.run(run_iteration(Store(root), config))
        remounted = _mount("-o", "remount,ro", str(disk))
        assert remounted.returncode == 0, remounted.stderr

        def run(*arguments: str) -> tuple[int, str]:
            done = CliRunner().invoke(app, [*arguments, "--data", str(root)])
            assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
            return done.exit_code, done.output

        query = f"select count(*) from episodes where run = '{config.run}'"
        for arguments in (
            ["verify"],
            ["sql", query],
            ["runs", "list"],
            ["explain", "critic-sft", "0", "--run", "trial"],
        ):
            code, said = run(*arguments)
            assert code == 0, f"{arguments}: {said}"
        code, said = run("iterate", "--run", config.run)
        assert code in (1, 2) and "can't be written to" in said and len(said.strip().splitlines()) == 1, said
    return {"said": said.strip().replace(str(folder), "...")}
