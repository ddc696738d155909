"""Group relative policy optimisation (Shao et al., arXiv 2402.03300): a task is played several times, and the policy
moves towards the episodes that did better than the others of their group. Sections `rollout.repeats` and
`policy_gradient` give DAPO, Dr. GRPO and GSPO."""

from collections.abc import Iterator

from schemas.config import Config
from tasks.environments.base import Environment
from tasks.improvement.group_advantages import group_relative
from tasks.runtime.algorithm import Algorithm
from tasks.training.sampled_turns import SAMPLED_TURNS, check_sampling


def _plays_groups(config: Config, environment: Environment) -> Iterator[str]:
    if config.rollout.repeats < 2:
        yield (
            f"rollout.repeats: algorithm {config.algorithm} compares several episodes of a task; set it to 2 or more "
            "(8 is usual)"
        )


GRPO = Algorithm(
    name="grpo",
    summary="a task played `rollout.repeats` times, advantages within the group, the clipped-ratio loss",
    stages=("rollout", "advantages", "policy-distillation", "evaluation"),
    advantages=group_relative,
    policy_rows=SAMPLED_TURNS,
    checks=(check_sampling, _plays_groups),
)
