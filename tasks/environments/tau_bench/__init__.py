"""tau-bench (Yao et al. 2024, arXiv 2406.12045): customer service with tools, in a shop and at an airline.

The package `tau_bench` brings policies, tools, databases, tasks and the simulated user's prompt; here stand the
episode, the reading of actions, and the reward. Nothing of the package is copied into this program.
"""

from tasks.environments.tau_bench.environment import TauBench

__all__ = ["TauBench"]
