"""Natural-language Q-learning: NLAC without refinement. Of several sampled actions the one that the evaluator most
probably calls optimal is distilled. The verdict is scored, not written."""

from collections.abc import Iterator

from schemas.config import Config
from tasks.algorithms.nlac import NLAC
from tasks.engines.backends import EngineConfigError, declared_capabilities
from tasks.environments.base import Environment
from tasks.improvement.best_of_n import BEST_OF_N, check_actions
from tasks.improvement.futures import PREDICTED
from tasks.improvement.verdicts import SCORED
from tasks.runtime.algorithm import Algorithm, Improvement
from tasks.training.policy_rows import REFINED_ACTIONS


def _evaluator_scores(config: Config, environment: Environment) -> Iterator[str]:
    engine = config.roles.evaluate.engine
    try:
        scores = declared_capabilities(config.engines[engine]).scoring
    except EngineConfigError:
        return  # reported with the engine
    if not scores:
        yield (
            f"roles.evaluate.engine: algorithm {config.algorithm} needs the probability of a verdict, and engine "
            f"'{engine}' does not score; route the role to an engine that does"
        )


NLQL = Algorithm(
    name="nlql",
    summary="`improvement.actions` actions, k predicted futures each, scored verdicts, the best of them",
    stages=NLAC.stages,
    critic_rows=NLAC.critic_rows,
    improvement=Improvement(PREDICTED, SCORED, BEST_OF_N),
    policy_rows=REFINED_ACTIONS,
    checks=(_evaluator_scores, check_actions),
)
