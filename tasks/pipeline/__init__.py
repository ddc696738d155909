"""Decides, runs and commits stages: registry, decision, runner, commit, iterations, plan, checks,
fingerprint inputs, early stopping."""
