"""Imports the Python that a configuration names: environments and rules.

An import runs the module's code, and a configuration may come from somebody else. So only the program's own
environments and rules are loaded, and what the user has named.
"""

import importlib
import os
from collections.abc import Iterable
from typing import Any

ALLOW_IMPORT = "NLAC_ALLOW_IMPORT"
"""Holds the names of allowed modules, separated by commas. Child processes inherit it, workers and their stages too."""

_OWN = "tasks.environments"
_IMPORTS_MORE = {f"{_OWN}.interchange": "verifiers"}
"""Modules of the program that import whatever a configuration's options name, and the library that does it."""


class ImportRefused(Exception):
    """What a configuration names may run code that is not allowed; the message names the remedy."""


def allow_imports(modules: Iterable[str]) -> None:
    """Allow modules, with what they contain, in this process and those that it starts."""
    os.environ[ALLOW_IMPORT] = ",".join(dict.fromkeys([*_allowed(), *modules]))


def load_named(module: str, name: str) -> Any:
    """The object of a name in a module.

    Raises:
        ImportRefused: it is not allowed, and no environment and no rules of the program.
        ImportError: the module can't be imported.
        AttributeError: it has no such name.
    """
    more = next((library for own, library in _IMPORTS_MORE.items() if _within(module, own)), None)
    if any(_within(given, allowed) for given in (module, more or module) for allowed in _allowed()):
        return getattr(importlib.import_module(module), name)
    if more is None and _within(module, _OWN):
        found = getattr(importlib.import_module(module), name)
        if _within(getattr(found, "__module__", None) or "", _OWN) and _is_offered(module, found):
            return found
    fault = (
        "imports the code that its options name"
        if more
        else "is not an environment or rules of this program, and naming it runs its code"
    )
    package = more or module.partition(".")[0]
    raise ImportRefused(
        f"'{module}:{name}' {fault}; if you trust it, name its module: --allow-import {package}, or "
        f"{ALLOW_IMPORT}={package}"
    )


def _is_offered(module: str, found: Any) -> bool:
    """Whether a configuration may name an object of the program: it is called with the configuration's options."""
    environment = isinstance(found, type) and hasattr(found, "reset") and hasattr(found, "step")
    return environment or module.endswith(".roles")


def _allowed() -> list[str]:
    return [name for part in os.environ.get(ALLOW_IMPORT, "").split(",") if (name := part.strip())]


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")
