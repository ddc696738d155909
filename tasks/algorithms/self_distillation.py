"""Self-distillation: NLAC without a successor model. Monte-Carlo rollouts of the policy stand in for predicted
futures."""

from collections.abc import Iterator

from schemas.config import Config
from tasks.environments.base import Environment
from tasks.improvement.monte_carlo import PLAYED
from tasks.improvement.refine import REFINED
from tasks.improvement.verdicts import REASONED, check_verdicts
from tasks.runtime.algorithm import Algorithm, Improvement
from tasks.training.policy_rows import REFINED_ACTIONS


def check_replayable(config: Config, environment: Environment) -> Iterator[str]:
    """Whether episodes can be played on from a state."""
    if not environment.replayable:
        yield (
            f"algorithm: {config.algorithm} plays episodes on from a state, and {environment.name} is not "
            "replayable; choose another algorithm or environment"
        )


SELF_DISTILLATION = Algorithm(
    name="self_distillation",
    summary="one action, k Monte-Carlo rollouts, a verdict and its reason, m rounds of refinement",
    stages=("rollout", "replay-draw", "critique", "refinement", "policy-distillation", "evaluation"),
    improvement=Improvement(PLAYED, REASONED, REFINED),
    policy_rows=REFINED_ACTIONS,
    checks=(check_replayable, check_verdicts),
)
