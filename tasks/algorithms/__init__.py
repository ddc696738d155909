"""The algorithms, a frozen value and a file each, and the table that the configuration's `algorithm` looks up.

A new algorithm that reuses stages is its file and one line here (docs/extending.md).
"""

from schemas.config import Config
from schemas.load import ConfigError
from tasks.algorithms.grpo import GRPO
from tasks.algorithms.nlac import NLAC
from tasks.algorithms.nlql import NLQL
from tasks.algorithms.nlrl import NLRL
from tasks.algorithms.ppo import PPO
from tasks.algorithms.react import REACT
from tasks.algorithms.refiner_alone import REFINER_ALONE
from tasks.algorithms.rft import RFT
from tasks.algorithms.sac import SAC
from tasks.algorithms.self_distillation import SELF_DISTILLATION
from tasks.runtime.algorithm import Algorithm

ALGORITHMS: dict[str, Algorithm] = {
    a.name: a for a in (NLAC, NLQL, SAC, NLRL, SELF_DISTILLATION, REFINER_ALONE, RFT, GRPO, PPO, REACT)
}


def algorithm_of(config: Config) -> Algorithm:
    """The algorithm that a configuration names.

    Raises:
        ConfigError: there is none of that name.
    """
    if config.algorithm not in ALGORITHMS:
        raise ConfigError(f"algorithm: '{config.algorithm}' is unknown; use one of {', '.join(ALGORITHMS)}")
    return ALGORITHMS[config.algorithm]
