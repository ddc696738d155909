"""vLLM: in process, or behind a server of our own that a supervisor process owns."""
