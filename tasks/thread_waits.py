"""How the threads of a product on a CPU wait for each other."""

import os

SPINS = 3000
"""Rounds of a waiting thread before it sleeps.

libgomp's own choice is 100 times as many. Beside other processes that takes their cores: a small model's token then
takes up to twenty times as long. With none, each of a token's several hundred products wakes a thread, and the token
takes 1.4 to 2.4 times as long (docs/benchmarks.md).
"""


def short_waits() -> dict[str, str]:
    """Environment variables to set before torch is loaded; none where the user has chosen."""
    chosen = os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}
    return {} if chosen else {"GOMP_SPINCOUNT": str(SPINS)}
