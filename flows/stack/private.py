"""What other users of the machine get no hold of: the stack's secret, its databases, its folders.

`<data>/.stack/profiles.toml` holds the secret, without which none of the stack's servers answers. It is a profile of
Prefect, which every process of the stack reads (PREFECT_PROFILES_PATH), as do plain `prefect` commands in the checkout
(`tool.prefect` in pyproject.toml). So the secret stands in no command line, and is never printed. It stays when the
stack stops, since browsers remember it.
"""

import base64
import re
import secrets
import tomllib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock

from flows.stack.environment import PROFILE, STACK_SECRET, profiles_path, stack_dir
from schemas.load import ConfigError
from schemas.secret_values import secret_value
from storage.files import PRIVATE_FILE, PRIVATE_FOLDER, make_folder, replace_text

_SECRET = re.compile(r"[\w-]+:[\w-]{16,}", re.ASCII)
AUTH_STRING = "PREFECT_API_AUTH_STRING"
"""Holds the secret of a client, which a server's own has another variable for."""
_OF_SERVER = "PREFECT_SERVER_API_AUTH_STRING"


def make_stack_dir(root: Path) -> Path:
    """The folder of a data root's stack, made if it is not there."""
    for folder in (root, stack_dir(root)):
        make_folder(folder, PRIVATE_FOLDER)
    return stack_dir(root)


def stack_secret(root: Path) -> str:
    """The secret of the stack's servers, as "user:password"; drawn at its first use."""
    path = profiles_path(root)
    with FileLock(make_stack_dir(root) / "secret.lock"):
        if not path.exists():
            _write(path, f"{PROFILE}:{secrets.token_urlsafe(32)}")
    return str(tomllib.loads(path.read_text(encoding="utf-8"))["profiles"][PROFILE][AUTH_STRING])


def take_secret(root: Path) -> bool:
    """Make what NLAC_STACK_SECRET gives the secret of the stack that starts.

    Returns:
        whether there is a secret, so that none would be drawn now.

    Raises:
        ConfigError: what it gives can't be used.
    """
    given, path = secret_value(STACK_SECRET), profiles_path(root)
    if given is None:
        return path.exists()
    if not _SECRET.fullmatch(given):
        raise ConfigError(
            f"{STACK_SECRET}: it must be user:password, of letters, digits, - and _, 16 or more of them in the password"
        )
    make_stack_dir(root)
    _write(path, given)
    return True


def _write(path: Path, secret: str) -> None:
    settings = "".join(f'{name} = "{secret}"\n' for name in (AUTH_STRING, _OF_SERVER))
    replace_text(path, f'active = "{PROFILE}"\n\n[profiles.{PROFILE}]\n{settings}', PRIVATE_FILE)


def secret_header(secret: str) -> dict[str, str]:
    """What every request to servers with this secret needs."""
    return {"Authorization": f"Basic {base64.b64encode(secret.encode()).decode()}"}


def exposed(root: Path) -> Iterator[Path]:
    """Folders and files of the stack that other users may enter or read, though nobody but its user should."""
    folders = [stack_dir(root), root / ".mlflow"]
    databases = [*(stack_dir(root) / "prefect").glob("*.db*"), *(root / ".mlflow").glob("*.db*")]
    for path in (*folders, profiles_path(root), *databases):
        if path.exists() and path.stat().st_mode & 0o077:
            yield path


def make_private(root: Path) -> None:
    """Take what an earlier version left open from other users. The data root itself keeps its mode: its owner may
    share it."""
    for path in list(exposed(root)):
        path.chmod(PRIVATE_FOLDER if path.is_dir() else PRIVATE_FILE)
