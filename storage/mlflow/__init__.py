"""Tells MLflow what was committed: runs, datasets, prompts, adapters. Nothing reads it back."""
