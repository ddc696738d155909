"""The supervised ceiling: the model fine-tuned on optimal play, in an environment that knows it.

It separates what the model can't represent from what the loop does not learn. It is a warm start on optimal
demonstrations, evaluated by algorithm react: a run of one iteration, without a stage of its own.
"""

from schemas.config import Config
from storage.store import Store
from tasks.datasets.solved_states import optimal_demonstrations
from tasks.environments import make_environment
from tasks.environments.base import KnowsBestActions
from tasks.runtime.stage import StageFailed


def ceiling_config(store: Store, config: Config, rows: int) -> Config:
    """The configuration of a run's ceiling, a run of its own; its demonstrations are written.

    Args:
        store: the artifact store, whose cache holds the demonstrations.
        config: of the run. Section `warm_start` says how the ceiling trains.
        rows: demonstrated actions; futures are twice as many.

    Raises:
        StageFailed: the environment does not know its best actions.
    """
    environment = make_environment(config.environment)
    if not isinstance(environment, KnowsBestActions):
        raise StageFailed(
            f"environment.name: {environment.name} does not know its best actions, so there is no supervised ceiling; "
            "frozen_lake and line_walk do, and any environment with a method solved_states (docs/environments.md)"
        )
    run = f"{config.run}-ceiling"
    file = store.cache_dir / "ceiling" / f"{run}.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    optimal_demonstrations(environment, rows, config.seed).write_parquet(file)
    content = config.model_dump()
    content |= {"run": run, "algorithm": "react"}
    content["warm_start"]["file"] = str(file)
    content["improvement"]["from_iteration"] = 0
    content["evaluation"]["every"] = 1
    return Config.model_validate(content)
