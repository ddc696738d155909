"""Rejection fine-tuning: the policy is fine-tuned on the actions of successful episodes of all iterations."""

from tasks.runtime.algorithm import Algorithm
from tasks.training.policy_rows import SUCCESSFUL_ACTIONS

RFT = Algorithm(
    name="rft",
    summary="the actions of successful episodes",
    stages=("rollout", "policy-distillation", "evaluation"),
    policy_rows=SUCCESSFUL_ACTIONS,
)
