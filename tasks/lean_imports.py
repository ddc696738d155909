"""Importing libraries without what they take along only because it happens to be installed.

MLflow brings SciPy and scikit-learn. Where those are found, nltk (of TextArena) and transformers import them for
functions that nothing here calls, at the cost of more than a second in every stage's process.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import cast


@contextmanager
def without(*packages: str) -> Iterator[None]:
    """Import as if optional packages were not installed. What is imported already stays, and afterwards they can be
    imported as ever; only the libraries imported in between go on without them, as they are made to.

    Args:
        packages: top-level names.
    """
    hidden = [name for name in packages if name not in sys.modules]
    modules = cast("dict[str, ModuleType | None]", sys.modules)
    modules.update(dict.fromkeys(hidden))  # None: not to be found (import system, "The module cache")
    try:
        yield
    finally:
        for name in hidden:
            if modules.get(name) is None:
                modules.pop(name, None)
