"""tau-bench (Yao et al. 2024, arXiv 2406.12045): customer service with tools, in a shop and at an airline.

The package `tau_bench` provides policies, tools, databases, tasks and the simulated user's prompt; nothing of it is
copied. This package holds the episode, the parsing of actions, and the reward.
"""

from tasks.environments.tau_bench.environment import TauBench

__all__ = ["TauBench"]
