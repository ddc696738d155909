"""Random streams: every draw has a seed of its own, derived from what it is for."""

import hashlib
import json


def derive_seed(root: int, *purpose: str | int) -> int:
    """A 63-bit seed for one purpose; the same purpose always gives the same seed, another one an unrelated
    seed.

    Args:
        root: the run's seed.
        purpose: what the draw is for, for instance ("rollout", 3, "train/7", "action", 2).
    """
    text = json.dumps([root, *purpose], separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
