"""The policy and its training rows for use outside the store: adapters, checkpoints, SFT rows, one played episode."""
