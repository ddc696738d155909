"""A run that is small enough to be made hundreds of times: real stages, tables, trainer and adapters of a tiny model,
its roles played by rules."""

import asyncio
import atexit
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from schemas.config import Config
from storage.store import Store
from tasks.chat.messages import RequestError
from tasks.engines.protocol import Request, ScoreRequest, Scores
from tasks.imports import allow_imports
from tasks.pipeline.iterations import begin_iteration, run_iteration
from tasks.pipeline.runner import run_stage
from tasks.runtime.stage import StageInterrupted
from tests.support.iterations import small_config
from tests.support.rules import number_game
from tests.support.tiny import make_tiny_checkpoint

allow_imports(["tests", "benchmarks"])  # here and in the processes that are started


class Player:
    """Plays every role by rules; after `left` requests its engine fails, until `left` is raised."""

    def __init__(self) -> None:
        self.left = float("inf")

    def __call__(self, request: Request) -> str:
        self.left -= 1
        if self.left < 0:
            raise RequestError("the engine died on purpose")
        return number_game(request)

    def score(self, request: ScoreRequest) -> Scores:
        scored: Scores = number_game.score(request)  # type: ignore[attr-defined]
        return scored


player = Player()


@cache
def _model() -> Path:
    """The tiny model, made once a process."""
    folder = Path(mkdtemp(prefix="nlac-tiny-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return make_tiny_checkpoint(folder)


def run_config(**changes: Any) -> Config:
    """A configuration of such a run."""
    return small_config(_model(), rules="benchmarks.reliability.small_run:player", **changes)


def run_iterations(store: Store, config: Config, number: int) -> None:
    """Compute so many iterations."""
    for _ in range(number):
        asyncio.run(run_iteration(store, config))


def interrupt(store: Store, config: Config, stage: str, iteration: int, after: int) -> Path:
    """Begin a stage whose engine fails after so many requests; gives its journal."""
    begin_iteration(store, config, iteration)
    player.left = after
    try:
        asyncio.run(run_stage(store, config, stage, iteration))
    except StageInterrupted:
        (journal,) = (store.run_dir(config.run) / ".requests").glob(f"{stage}-{iteration:05d}-*.journal")
        return journal
    finally:
        player.left = float("inf")
    raise AssertionError(f"{stage} asked no more than {after} times")
