"""Proximal policy optimisation (Schulman et al., arXiv 1707.06347): a value head beside the policy, generalised
advantages over the turns of an episode, the clipped-ratio loss."""

from tasks.improvement.generalised_advantages import generalised
from tasks.runtime.algorithm import Algorithm
from tasks.training.sampled_turns import SAMPLED_TURNS, check_sampling

PPO = Algorithm(
    name="ppo",
    summary="values of a scalar head, advantages by GAE over turns, the clipped-ratio loss",
    stages=("rollout", "values", "advantages", "policy-distillation", "evaluation"),
    advantages=generalised,
    policy_rows=SAMPLED_TURNS,
    checks=(check_sampling,),
)
