"""A run that is measured after each iteration, and goes on where it stopped: iterations are committed in the store, and
the result's file is written after each."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.learning.environment_steps import used_steps
from benchmarks.learning.measured_run import Figures
from benchmarks.learning.result_files import (
    R,
    commit,
    configuration_digest,
    measured_here,
    read_result,
    write_result,
)
from schemas.config import Config
from storage.store import Store
from tasks.pipeline.iterations import frozen_config, run_iteration
from tasks.runtime.stage import StageFailed
from tasks.training.records import TrainingDiverged


async def go_on(
    store: Store,
    config: Config,
    begun: R,
    results: Path,
    measure: Callable[[int], Awaitable[Figures]],
    *,
    steps: int,
    iterations: int | None = None,
    more: Callable[[int], dict[str, Any]] = lambda iteration: {},
    beside: bool = False,
) -> R:
    """Iterate and measure until so many environment steps are used.

    An iteration whose training diverges is repeated once with a fresh optimizer, which the result tells.

    Args:
        store: the artifact store.
        config: of the run.
        begun: the result, without figures.
        results: folder of its file.
        measure: the figures of an iteration that is finished.
        steps: environment steps.
        iterations: at most so many; None: no limit.
        more: further fields of the result after an iteration.
        beside: an iteration is measured while the next one runs.

    Raises:
        StageFailed: a stage failed; `__cause__` is TrainingDiverged where the fresh optimizer did not help.
        SystemExit: the store holds the run with another configuration.
    """
    begun = replace(begun, commit=commit())  # at the start: a checkout may move on meanwhile
    figures = measured_before(store, config, begun, results)

    def so_far(iteration: int) -> R:
        repeated = [n for n in range(iteration + 1) if is_repeated(store, config, n)]
        return measured_here(begun, config, figures, fresh_optimizer=repeated, **more(iteration))

    async def note(iteration: int, seconds: float) -> None:
        began = time.monotonic()
        figures.append(await measure(iteration))
        write_result(results, so_far(iteration))
        told = " ".join(f"{k} {v:.3f}" for k, v in asdict(figures[-1]).items() if isinstance(v, float))
        print(
            f"{begun.name} {iteration}: {figures[-1].environment_steps} steps, {told} "
            f"({seconds:.0f} + {time.monotonic() - began:.0f} s)",
            flush=True,
        )

    def enough(iteration: int) -> bool:
        return iteration == iterations or (
            iteration > 0 and used_steps(store, config.run, iteration - 1) >= steps
        )

    iteration, noting = len(figures), asyncio.ensure_future(asyncio.sleep(0))
    while not enough(iteration):
        began = time.monotonic()
        try:
            await iterate(store, config, iteration)
            seconds = time.monotonic() - began
        finally:
            await noting  # the iteration before is in the result even where this one fails
        noting = asyncio.ensure_future(note(iteration, seconds))
        if not beside:
            await noting
        iteration += 1
    await noting
    return so_far(len(figures) - 1)


async def iterate(store: Store, config: Config, iteration: int) -> None:
    """Run an iteration, or go on with it. Where its training diverges, repeat that once with a fresh optimizer, as the
    error advises; the first iteration has one anyway."""
    reset = {"optimizer": "reset"}
    afresh = config.model_copy(
        update={name: getattr(config, name).model_copy(update=reset) for name in ("critic", "policy")}
    )
    repeated = is_repeated(store, config, iteration)
    try:
        await run_iteration(store, afresh if repeated else config, iteration)
    except StageFailed as failed:
        if repeated or iteration == 0 or not isinstance(failed.__cause__, TrainingDiverged):
            raise
        await run_iteration(store, afresh, iteration)


def is_repeated(store: Store, config: Config, iteration: int) -> bool:
    """Whether an iteration has the fresh optimizer of a repetition."""
    begun = frozen_config(store, config.run, iteration)
    return begun is not None and begun.policy.optimizer != config.policy.optimizer


def measured_before(store: Store, config: Config, result: R, results: Path) -> list[Any]:
    """The figures of a run that was begun here; none where this store does not hold it.

    Raises:
        SystemExit: it was begun with another configuration.
    """
    begun, path = frozen_config(store, config.run, 0), results / f"{result.name}.json"
    if begun is None:
        return []
    if configuration_digest(begun) != result.configuration:
        raise SystemExit(
            f"{store.root} holds run {config.run} with another configuration; give another --data, or remove "
            f"{store.root / config.run}"
        )
    before = read_result(path, type(result)) if path.exists() else result
    if before.configuration != result.configuration:
        return []
    return before.figures[: len(finished(store, config.run))]


def finished(store: Store, run: str) -> list[int]:
    """The iterations that a run has ended."""
    return [n for n in store.iterations(run) if store.current(run, n).state == "finished"]
