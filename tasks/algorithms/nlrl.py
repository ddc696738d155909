"""Natural-language reinforcement learning (Feng et al., arXiv 2411.14251), as the baseline of arXiv 2512.04601: the
value of an action is what several on-policy rollouts of it amount to, aggregated in one context; the policy is improved
by choosing among its own actions by these values, and the choice is distilled. docs/algorithms.md says what is open."""

from collections.abc import Iterator

from schemas.config import Config
from tasks.algorithms.self_distillation import SELF_DISTILLATION, check_replayable
from tasks.environments.base import Environment
from tasks.improvement.aggregation import AGGREGATED, CHOSEN
from tasks.improvement.best_of_n import check_actions
from tasks.improvement.monte_carlo import PLAYED
from tasks.runtime.algorithm import Algorithm, Improvement
from tasks.training.policy_rows import REFINED_ACTIONS


def _has_no_verdicts(config: Config, environment: Environment) -> Iterator[str]:
    section = config.improvement
    unfit = {
        "rounds": (section.rounds > 1, "1"),
        "require_gain": (section.require_gain, "false"),
        "verdict": (section.verdict == "scored", "auto"),
    }
    for field, (is_unfit, remedy) in unfit.items():
        if is_unfit:
            yield (
                f"improvement.{field}: algorithm {config.algorithm} chooses once, among values without a verdict; set "
                f"it to {remedy}"
            )


NLRL = Algorithm(
    name="nlrl",
    summary="`improvement.actions` actions, k Monte-Carlo rollouts of each aggregated in words, the refiner's choice",
    stages=SELF_DISTILLATION.stages,
    improvement=Improvement(PLAYED, AGGREGATED, CHOSEN),
    policy_rows=REFINED_ACTIONS,
    checks=(check_replayable, check_actions, _has_no_verdicts),
)
