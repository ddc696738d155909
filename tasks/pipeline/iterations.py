"""Iterations: which one is next, the configuration it is frozen with, running one in this process."""

from collections.abc import Sequence

from schemas.config import Config
from schemas.load import dump_config, load_config
from storage.store import Committed, Store
from tasks.engines.dtype import Choice, choose_dtype
from tasks.engines.vllm.servers import serving
from tasks.pipeline.registry import stages_of
from tasks.pipeline.runner import StageResult, run_stage
from tasks.runtime.progress import Report
from tasks.runtime.stage import StageFailed


class IterationFrozen(StageFailed):
    """A finished iteration was asked for under another configuration than it was computed with."""


def next_iteration(store: Store, run: str) -> int:
    """The first unfinished iteration, else the number after the last one. Imported episodes may lie ready for several
    iterations to come."""
    known = store.iterations(run)
    unfinished = (number for number in known if store.current(run, number).state == "running")
    return next(unfinished, known[-1] + 1 if known else 0)


def frozen_config(store: Store, run: str, iteration: int) -> Config | None:
    """The configuration an iteration was begun with; None where it was not begun."""
    path = store.config_path(run, iteration)
    return load_config(path) if path.exists() else None


def dtype_choice(store: Store, config: Config, iteration: int) -> Choice:
    """The type of the model's weights in an iteration. With `auto` a run keeps the type that its iterations have, on
    whatever machine it goes on; a new run takes the best one here.

    Raises:
        ModelError: the type can't be chosen.
    """
    if config.model.dtype == "auto":
        for number in range(iteration, -1, -1):
            begun = frozen_config(store, config.run, number)
            if begun is not None and begun.model.dtype != "auto":
                return Choice(
                    dtype=begun.model.dtype, reason=f"as in iteration {number} of run '{config.run}'"
                )
    return choose_dtype(config.model)


def settle(store: Store, config: Config, iteration: int) -> Config:
    """The configuration with a type of weights in place of `model.dtype: auto`. Only such a one may be frozen, digested
    or handed to a stage or a server.

    Raises:
        ModelError: the type can't be chosen.
    """
    if config.model.dtype != "auto":
        return config
    dtype = dtype_choice(store, config, iteration).dtype
    return config.model_copy(update={"model": config.model.model_copy(update={"dtype": dtype})})


def begin_iteration(store: Store, config: Config, iteration: int) -> Config:
    """Settle an iteration's configuration and freeze it; the caller holds the run's lock.

    A changed configuration applies to the stages of an unfinished iteration that are not committed yet;
    those that are keep what they were computed with.

    Returns:
        The configuration to run with.

    Raises:
        ModelError: the type of the model's weights can't be chosen.
        StageFailed: an earlier iteration is missing or unfinished, or the run holds another algorithm.
        IterationFrozen: the iteration is finished, and `config` is not its configuration.
    """
    run = config.run
    for earlier in range(iteration):
        if store.current(run, earlier).state != "finished":
            raise StageFailed(
                f"iteration {iteration} of run '{run}' needs iteration {earlier}, which is not finished; run without "
                f"an iteration number to go on with it"
            )
    before = frozen_config(store, run, iteration)
    known = before or (frozen_config(store, run, iteration - 1) if iteration else None)
    if known is not None and known.algorithm != config.algorithm:
        raise StageFailed(
            f"run '{run}' holds iterations of algorithm {known.algorithm}, and a run holds one algorithm; choose "
            f"another run (run=NAME) for {config.algorithm}, or set algorithm to {known.algorithm}"
        )
    config = settle(store, config, iteration)
    current = store.current(run, iteration)
    if before is not None and current.state == "finished":
        if before != config:
            raise IterationFrozen(
                f"iteration {iteration} of run '{run}' is finished and keeps the configuration it was begun with; the "
                f"changed one applies from the next iteration on (recompute one stage with force=true and a config)"
            )
        return config
    if before != config:
        text = dump_config(config)
        store.set_config(run, iteration, text, private=text != dump_config(config, masked=True))
    store.change_current(run, iteration, lambda current: current)
    return config


def finish_iteration(store: Store, run: str, iteration: int) -> None:
    """Mark an iteration finished; the next run begins the one after it."""
    store.change_current(run, iteration, lambda current: current.model_copy(update={"state": "finished"}))


async def run_iteration(
    store: Store,
    config: Config,
    iteration: int | None = None,
    *,
    force: bool = False,
    report: Report | None = None,
) -> list[StageResult]:
    """Run (or resume) an iteration in this process, without Prefect.

    Args:
        store: the artifact store.
        config: the resolved configuration.
        iteration: which; None resumes an unfinished one, else starts the next.
        force: recompute every stage.
        report: told of progress.

    Raises:
        RunLocked: something else writes the run.
        StageFailed: a stage failed; running again resumes there.
    """
    with store.lock(config.run, "an iteration in process"):
        number = next_iteration(store, config.run) if iteration is None else iteration
        config = begin_iteration(store, config, number)
        with serving(config.engines.values(), config.model, store.cache_dir):
            results = [
                await run_stage(store, config, stage, number, force=force, report=report)
                for stage in stages_of(config, number)
            ]
        finish_iteration(store, config.run, number)
    return results


async def run_stages(store: Store, config: Config, stages: Sequence[str], iteration: int = 0) -> Committed:
    """Run some stages of an iteration in this process, or reuse them; it is not finished by that.

    Args:
        store: the artifact store.
        config: the resolved configuration.
        stages: which, in the order of the pipeline.
        iteration: whose.

    Returns:
        what the last one committed.

    Raises:
        RunLocked: something else writes the run.
        StageFailed: a stage failed.
    """
    with store.lock(config.run, "stages in process"):
        config = begin_iteration(store, config, iteration)
        results = [await run_stage(store, config, stage, iteration) for stage in stages]
    return results[-1].committed


def result_row(stage: str, result: StageResult) -> dict[str, str | int | float]:
    """One line of the final table."""
    manifest = result.committed.manifest
    return {
        "stage": stage,
        "rows_in": manifest.rows_in,
        "rows_out": sum(t.rows for t in manifest.tables.values()),
        "rejected": sum(t.rejected for t in manifest.tables.values()),
        "tokens": manifest.tokens,
        "seconds": manifest.seconds,
        "reused": "reused" if result.reused else "computed",
    }
