"""On PYTHONPATH this folder comes before the real vLLM."""
