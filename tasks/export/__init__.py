"""The policy and its training rows for use outside: adapters, checkpoints, SFT rows, one played episode."""
