"""Private states of the global random generators."""

import random
from typing import Any

import numpy as np


class GlobalRandom:
    """A private state of the global generators of Python and NumPy, for libraries that draw from them.

    Concurrent episodes each wrap their calls in a state of their own, so none disturbs another.
    """

    def __init__(self, seed: int) -> None:
        self._state: Any = random.Random(seed).getstate()
        self._numpy: Any = np.random.RandomState(seed % 2**32).get_state()

    def __enter__(self) -> None:
        self._outer = random.getstate(), np.random.get_state()
        random.setstate(self._state)
        np.random.set_state(self._numpy)

    def __exit__(self, *_: object) -> None:
        self._state, self._numpy = random.getstate(), np.random.get_state()
        random.setstate(self._outer[0])
        np.random.set_state(self._outer[1])
