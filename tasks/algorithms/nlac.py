"""Natural Language Actor-Critic (Hong et al., arXiv 2512.04601): the critic predicts futures, the evaluator writes a
critique of them, and the refiner improves the action by it."""

from tasks.improvement.futures import PREDICTED
from tasks.improvement.refine import REFINED
from tasks.improvement.verdicts import REASONED, check_verdicts
from tasks.runtime.algorithm import Algorithm, Improvement
from tasks.training.critic_rows import LABELS
from tasks.training.policy_rows import REFINED_ACTIONS

NLAC = Algorithm(
    name="nlac",
    summary="one action, k predicted futures, a verdict and its reason, m rounds of refinement",
    stages=(
        "rollout",
        "bellman-targets",
        "cot-correction",
        "critic-sft",
        "critique",
        "refinement",
        "policy-distillation",
        "evaluation",
    ),
    critic_rows=LABELS,
    improvement=Improvement(PREDICTED, REASONED, REFINED),
    policy_rows=REFINED_ACTIONS,
    checks=(check_verdicts,),
)
