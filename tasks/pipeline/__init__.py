"""Decides, runs and commits stages: registry, decision, runner, shards, commit, iterations, plan, checks,
fingerprint inputs, early stopping."""
