"""ReAct (Yao et al. 2022, arXiv 2210.03629): the model as it is, evaluated. Nothing is trained."""

from collections.abc import Iterator

from schemas.config import Config
from tasks.environments.base import Environment, Unplayable
from tasks.runtime.algorithm import Algorithm


def _playable(config: Config, environment: Environment) -> Iterator[str]:
    if isinstance(environment, Unplayable):
        yield f"algorithm: react only evaluates, and environment {environment.name} can't be played; choose another"


REACT = Algorithm(
    name="react", summary="the base model, evaluated", stages=("evaluation",), checks=(_playable,)
)
