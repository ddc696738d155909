"""Importing libraries without what they take along only because it happens to be installed.

MLflow brings SciPy and scikit-learn. Where those are found, nltk (of TextArena) and transformers import them for
functions that nothing here calls, at the cost of more than a second and 130 MiB in every stage's process. Triton, which
writes kernels for GPUs, is 70 MiB more.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import cast

# Matrix products on a CPU keep what they worked out for a shape: oneDNN for 1,024 shapes in all and torch for as many
# in each thread, which texts of many lengths fill with a third of a gigabyte. A core computes with some forty at once.
SHAPES_KEPT = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": 64 * (os.cpu_count() or 1), "LRU_CACHE_CAPACITY": 16}


@contextmanager
def lean_transformers() -> Iterator[None]:
    """Import transformers' models, and what computes or trains them, to compute in this process: without SciPy and
    scikit-learn, without Triton where there is no GPU, and with few shapes kept unless the environment says otherwise.
    """
    import torch

    for name, count in SHAPES_KEPT.items():
        os.environ.setdefault(name, str(count))  # read at the first product
    with without("scipy", "sklearn", *([] if torch.cuda.is_available() else ["triton"])):
        yield


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
