"""Decides, runs and commits stages: registry, runner, iterations, plan, checks, fingerprints, early stopping."""
