"""Secrets that a variable gives: by itself, or by naming a file that only its user can read."""

import os
from collections.abc import Mapping
from pathlib import Path

from schemas.load import ConfigError


def secret_value(variable: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """The secret that a variable holds, or that stands in the file whose absolute path it holds.

    Returns:
        None: the variable is not set, or empty.

    Raises:
        ConfigError: the file can't be read, is empty, or other users can read it.
    """
    value = environment.get(variable, "").strip()
    if not value.startswith("/"):
        return value or None
    file = Path(value)
    try:
        mode, content = file.stat().st_mode, file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{variable}: {file} can't be read ({error}); name a file that holds it") from None
    if mode & 0o077:
        raise ConfigError(f"{variable}: other users can read {file}; first: chmod go= {file}")
    if not content:
        raise ConfigError(f"{variable}: {file} is empty; write the value into it")
    return content
