"""Measures of an evaluation: success, the baseline without a model, and retention of general skills."""
