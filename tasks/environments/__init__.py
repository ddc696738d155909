"""Text environments behind one small protocol, found by name or by import path. They know nothing of stages."""

import inspect
from collections.abc import Callable
from typing import cast

from schemas.config import EnvironmentSection
from tasks.environments.base import Environment, asks_model
from tasks.environments.registry import BUILTIN
from tasks.imports import ImportRefused, load_named


class UnusableEnvironment(Exception):
    """An environment can't be constructed; the message names the field and the remedy."""


class AbsentEnvironment(UnusableEnvironment):
    """A package or a file of it is not on this machine; it may be on another."""


def make_environment(section: EnvironmentSection) -> Environment:
    """A new instance of an environment.

    Raises:
        UnusableEnvironment: the name is unknown, the import path is not allowed or does not import, an option is
            refused, or a game is missing.
        AbsentEnvironment: its package or a file that an option names is not on this machine.
    """
    factory = _factory(section.name)
    try:
        inspect.signature(factory).bind(**section.options)  # a clear TypeError before anything is made
        return factory(**section.options)
    except ImportError as error:
        raise AbsentEnvironment(f"environment.name: {section.name}: {error}") from error
    except FileNotFoundError as error:
        raise AbsentEnvironment(f"environment.options: {section.name}: {error}") from error
    except (TypeError, ValueError, KeyError, LookupError) as error:
        raise UnusableEnvironment(
            f"environment.options: {section.name} does not take {dict(section.options)}: {error}"
        ) from error


def check_environment_model(section: EnvironmentSection, environment: Environment) -> None:
    """Refuse an environment that needs an environment model and has none, or the reverse.

    Raises:
        UnusableEnvironment: the field and the remedy.
    """
    needed = asks_model(environment)
    if needed and section.model is None:
        raise UnusableEnvironment(
            f"environment.model: {environment.name} needs an environment model and none is configured; set "
            "environment.model.engine to the name of an engine"
        )
    if section.model is not None and not needed:
        raise UnusableEnvironment(
            f"environment.model: {environment.name} needs no environment model with these options; remove it"
        )


def _factory(name: str) -> Callable[..., Environment]:
    known = BUILTIN.get(name)
    if known is not None and known.missing:
        raise AbsentEnvironment(f"environment.name: {name} {known.missing}")
    path = known.path if known else name
    module, _, attribute = path.partition(":")
    if not attribute:
        names = ", ".join(sorted(BUILTIN))
        raise UnusableEnvironment(
            f"environment.name: '{name}' is unknown; use one of {names}, or an import path 'module:factory'"
        )
    try:
        return cast(Callable[..., Environment], load_named(module, attribute))
    except ImportRefused as error:
        raise UnusableEnvironment(f"environment.name: {error}") from error
    except (ImportError, AttributeError) as error:
        raise UnusableEnvironment(
            f"environment.name: '{path}' can't be imported: {error}; is its folder on PYTHONPATH?"
        ) from error
