"""Joining the Prefect server of another host: what is asked of it before anything starts."""

import urllib.error
import urllib.request
from ipaddress import IPv4Address
from pathlib import Path
from urllib.parse import urlsplit

from flows.stack.environment import STACK_SECRET, profiles_path
from flows.stack.private import secret_header, stack_secret
from tasks.loopback import open_loopback

SECONDS = 10.0


class StackError(Exception):
    """The stack can't be started or stopped; the message says why and what to do."""


def api_address(given: str) -> str:
    """The address of an API as a person may write it: with or without /api.

    Raises:
        StackError: it is none, or holds a password.
    """
    parts = urlsplit(given)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
        raise StackError(f"--join: the form is http://HOST:PORT, and {STACK_SECRET} gives the secret")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/api')}/api"


def own_address(given: str) -> str:
    """The address on which a server is to listen.

    Raises:
        StackError: it is no single IPv4 address. Other hosts are told this one, so it can't be all at once.
    """
    try:
        if IPv4Address(given).is_unspecified:
            raise ValueError("it means all networks of this host")
    except ValueError as error:
        raise StackError(
            f"--listen: {given!r} can't be used ({error}); give this host's IPv4 address in the network of the others"
        ) from None
    return given


def check_server(root: Path, api_url: str, has_secret: bool) -> None:
    """Whether a Prefect server answers there, and takes the secret of this host.

    Args:
        root: the data root.
        api_url: of the server.
        has_secret: whether this host has a secret.

    Raises:
        StackError: it does not.
    """
    how = (
        f"set {STACK_SECRET} to the PREFECT_API_AUTH_STRING in the server's profiles.toml, or copy that file to "
        f"{profiles_path(root)} with mode 600"
    )
    if not has_secret:
        raise StackError(f"this host has no secret for {api_url}; {how}")
    try:
        open_loopback(
            urllib.request.Request(f"{api_url}/version", headers=secret_header(stack_secret(root))), SECONDS
        ).close()
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            raise StackError(f"{api_url} does not take the secret of this host; {how}") from None
        raise StackError(f"{api_url} is no Prefect API: it answers with status {error.code}") from None
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise StackError(
            f"{api_url} does not answer ({reason}). Is the stack up there, with --listen, and does a firewall let "
            "this host in?"
        ) from None
