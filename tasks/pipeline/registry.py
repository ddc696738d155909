"""The stages, and which of them an iteration runs."""

from schemas.config import Config
from tasks.algorithms import algorithm_of
from tasks.runtime.stage import Stage
from tasks.stages import (
    action_samples,
    action_values,
    advantages,
    bellman_targets,
    cot_correction,
    critic_sft,
    critique,
    evaluation,
    policy_distillation,
    refinement,
    replay_draw,
    rollout,
    td_targets,
    values,
    warm_start,
)

STAGES: dict[str, Stage] = {
    module.STAGE.name: module.STAGE
    for module in (
        warm_start, rollout, values, advantages, replay_draw, action_samples, td_targets, bellman_targets,
        cot_correction, critic_sft, action_values, critique, refinement, policy_distillation, evaluation,
    )
}  # fmt: skip
"""All stages by name, in the order in which they run."""

IMPROVEMENT = {"action-values", "critique", "refinement", "policy-distillation"}


def stages_of(config: Config, iteration: int) -> list[str]:
    """The stages of an iteration, in order.

    They are those of the algorithm, without rollout where nothing is played, without improvement before
    `improvement.from_iteration`, and with evaluation in every `evaluation.every`-th iteration. Iteration 0 begins with
    a warm start if one is configured.
    """
    left_out = {"rollout"} if config.rollout.source == "none" else set()
    if (iteration + 1) % config.evaluation.every:
        left_out.add("evaluation")
    if iteration < config.improvement.from_iteration:
        left_out |= IMPROVEMENT
    first = [warm_start.STAGE.name] if config.warm_start.file and iteration == 0 else []
    return first + [name for name in algorithm_of(config).stages if name not in left_out]
