"""Imports the Python that a configuration names: environments and rules.

An import runs the module's code, and a configuration may come from somebody else. So only the program's own
environments are imported, and modules that the user has named.
"""

import importlib
import os
from collections.abc import Iterable
from typing import Any

ALLOW_IMPORT = "NLAC_ALLOW_IMPORT"
"""Holds the names of allowed modules, separated by commas. Child processes inherit it, workers and their stages too."""

_OWN = "tasks.environments"


class ImportRefused(Exception):
    """A module that is not the project's own is not allowed; the message names the remedy."""


def allow_imports(modules: Iterable[str]) -> None:
    """Allow modules, with what they contain, in this process and those that it starts."""
    os.environ[ALLOW_IMPORT] = ",".join(dict.fromkeys([*_allowed(), *modules]))


def load_named(module: str, name: str) -> Any:
    """The object of a name in a module.

    Raises:
        ImportRefused: the module, or what the name stands for, is neither the project's own nor allowed.
        ImportError: the module can't be imported.
        AttributeError: it has no such name.
    """
    if any(_within(module, allowed) for allowed in _allowed()):
        return getattr(importlib.import_module(module), name)
    if _within(module, _OWN):
        found = getattr(importlib.import_module(module), name)
        if _within(getattr(found, "__module__", None) or "", _OWN):
            return found
    package = module.partition(".")[0]
    raise ImportRefused(
        f"'{module}:{name}' is not one of this program's own, and importing it runs its code; if you trust it, name "
        f"its module: --allow-import {package}, or {ALLOW_IMPORT}={package}"
    )


def _allowed() -> list[str]:
    return [name for part in os.environ.get(ALLOW_IMPORT, "").split(",") if (name := part.strip())]


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")
