"""Parameters that every deployment takes, checked by Prefect before anything runs, and what they mean."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from schemas.config import Algorithm, Config
from schemas.load import load_config
from storage.store import Store
from tasks.pipeline.iterations import config_path, next_iteration

RunName = Annotated[str | None, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
Iteration = Annotated[int | None, Field(ge=0)]
Seed = Annotated[int | None, Field(ge=0)]


def latest_iteration(store: Store, run: str) -> int:
    """What a stage alone works on: the unfinished iteration of a run, else its last one, else 0."""
    number = next_iteration(store, run)
    return number if number in store.iterations(run) else max(number - 1, 0)


def resolve(
    store: Store,
    run: str | None,
    config: str | None,
    iteration: int | None,
    seed: int | None,
    *,
    stage_alone: bool,
    algorithm: Algorithm | None = None,
) -> tuple[Config, int]:
    """The configuration and the iteration that these parameters mean.

    Args:
        store: the artifact store.
        run, config, iteration, seed: as given to the deployment.
        stage_alone: an empty iteration is the latest one; otherwise the unfinished one or the next.
        algorithm: as given to the deployment.

    Raises:
        ConfigError: the configuration can't be used.
    """
    given = {"run": run, "seed": seed, "algorithm": algorithm}
    changes = {name: value for name, value in given.items() if value is not None}
    chosen = load_config(config, changes)
    if iteration is None:
        iteration = latest_iteration(store, chosen.run) if stage_alone else next_iteration(store, chosen.run)
    if config is None:
        chosen = _remembered(store, chosen, iteration, changes)
    return chosen, iteration


def _remembered(store: Store, default: Config, iteration: int, changes: Mapping[str, object]) -> Config:
    """What to use where no configuration is named: the one the iteration was begun with; for a new iteration
    of a run that is not the default file's own, the one of the iteration before it."""
    frozen = config_path(store, default.run, iteration)
    if not frozen.exists() and default.run != load_config().run and iteration > 0:
        frozen = config_path(store, default.run, iteration - 1)
    return load_config(frozen, changes) if frozen.exists() else default
