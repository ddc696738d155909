"""Our environments as a taskset of the library `verifiers`, which asks for a module of one word."""

from tasks.environments.interchange.to_verifiers import NlacEnv, NlacTaskset

__all__ = ["NlacEnv", "NlacTaskset"]
