"""What an iteration would do: its stages, requests and tokens, before anything runs."""

from dataclasses import dataclass

from schemas.config import Config
from tasks.algorithms import algorithm_of
from tasks.pipeline.registry import STAGES, stages_of
from tasks.runtime.stage import Bound


@dataclass(frozen=True)
class PlanRow:
    """At most what one stage of an iteration costs, and the work pool it runs on."""

    stage: str
    pool: str
    bound: Bound


def plan(config: Config) -> list[PlanRow]:
    """The stages of iteration 0 with upper bounds; caps on lengths are seldom reached."""
    algorithm = algorithm_of(config)
    return [
        PlanRow(name, getattr(config.pools, STAGES[name].pool), STAGES[name].bound(config, algorithm))
        for name in stages_of(config, 0)
    ]
