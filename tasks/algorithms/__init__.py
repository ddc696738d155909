"""The algorithms, one frozen value each."""
