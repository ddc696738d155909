"""Soft actor-critic (Haarnoja et al., arXiv 1801.01290) for a language model: a scalar Q head in the place of NLAC's
language critic, and all else as there. Q reads the prompt that the successor reads. The policy moves towards actions
that it sampled itself, weighted by softmax(Q / temperature) over those of a state. docs/algorithms.md says what the
language leaves open, and what is chosen here."""

from collections.abc import Iterator

from schemas.config import BackupSection, Config
from tasks.environments.base import Environment
from tasks.improvement.best_of_n import check_actions
from tasks.runtime.algorithm import Algorithm
from tasks.training.action_values import TD_TARGETS, WEIGHTED_ACTIONS


def _backs_up_numbers(config: Config, environment: Environment) -> Iterator[str]:
    for field in BackupSection.model_fields:
        if getattr(config.backup, field) != getattr(BackupSection(), field):
            yield (
                f"backup.{field}: algorithm {config.algorithm} backs up numbers, and the section is for texts; leave "
                "it out"
            )


SAC = Algorithm(
    name="sac",
    summary="a scalar Q head with TD targets; `improvement.actions` sampled actions, weighted by their soft values",
    stages=(
        "rollout",
        "replay-draw",
        "action-samples",
        "td-targets",
        "critic-sft",
        "action-values",
        "policy-distillation",
        "evaluation",
    ),
    critic_rows=TD_TARGETS,
    policy_rows=WEIGHTED_ACTIONS,
    checks=(check_actions, _backs_up_numbers),
)
