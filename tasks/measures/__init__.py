"""What is measured beside success: the baseline without a model, and retention of general skills."""
