"""The refiner alone: its first proposal is distilled, and nothing is foreseen. A control that shows what evaluator and
refiner know by themselves, without a critic."""

from collections.abc import Iterator

from schemas.config import Config
from tasks.environments.base import Environment
from tasks.improvement.futures import UNFORESEEN
from tasks.improvement.refine import REFINED
from tasks.improvement.verdicts import REASONED, check_verdicts
from tasks.runtime.algorithm import Algorithm, Improvement
from tasks.training.policy_rows import REFINED_ACTIONS


def _proposes_once(config: Config, environment: Environment) -> Iterator[str]:
    for field in ("rounds", "futures"):
        if (getattr(config.improvement, field) or 1) > 1:
            yield (
                f"improvement.{field}: algorithm {config.algorithm} distils the first proposal, and foresees nothing; "
                "set it to 1"
            )


REFINER_ALONE = Algorithm(
    name="refiner_alone",
    summary="one action, no futures, a written verdict, the refiner's first proposal",
    stages=("rollout", "replay-draw", "critique", "refinement", "policy-distillation", "evaluation"),
    improvement=Improvement(UNFORESEEN, REASONED, REFINED),
    policy_rows=REFINED_ACTIONS,
    checks=(_proposes_once, check_verdicts),
)
