"""vLLM: in the stage's process, or as a server that the program starts and a supervisor process owns."""
