"""A stand-in for vLLM: its HTTP server alone, with rules in place of a model."""
