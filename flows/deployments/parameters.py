"""The parameters that every deployment takes, and the configuration and iteration that they mean."""

from typing import Annotated

from pydantic import Field

from schemas.config import Config
from schemas.load import load_config
from storage.store import Store
from tasks.algorithms import ALGORITHMS
from tasks.pipeline.iterations import next_iteration

RunName = Annotated[str | None, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
Iteration = Annotated[int | None, Field(ge=0)]
Seed = Annotated[int | None, Field(ge=0)]
ShardName = Annotated[str | None, Field(pattern=r"^\d{1,4}/\d{1,4}$")]
AlgorithmName = Annotated[str | None, Field(json_schema_extra={"enum": [*ALGORITHMS, None]})]


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
    algorithm: str | None = None,
) -> tuple[Config, int]:
    """The configuration and the iteration that these parameters mean.

    Where no configuration is named, an iteration keeps the one that it was begun with. A new iteration takes that of
    the iteration before it, unless the run is the default configuration's own.

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
    named = load_config(config, changes) if config is not None or run is None else None
    name = named.run if named is not None else str(run)
    if iteration is None:
        iteration = latest_iteration(store, name) if stage_alone else next_iteration(store, name)
    if named is not None and config is not None:
        return named, iteration
    frozen = store.config_path(name, iteration)
    if not frozen.exists() and iteration > 0 and name != load_config().run:
        frozen = store.config_path(name, iteration - 1)
    if frozen.exists():
        return load_config(frozen, changes), iteration
    return named or load_config(None, changes), iteration
