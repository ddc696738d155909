"""Requests to the stack's Prefect API over plain HTTP, for commands that are quicker without Prefect's client."""

import json
import urllib.request
from pathlib import Path
from typing import Any

from flows.stack.control import Stack
from flows.stack.private import secret_header
from tasks.loopback import open_loopback

CLIENT = "nlac"  # the name under which CSRF tokens are drawn


def ask(stack: Stack, path: str, body: object = None, seconds: float = 10.0) -> Any:
    """The JSON answer of the API.

    Args:
        stack: one that is up.
        path: below /api, for instance /flow_runs/filter.
        body: to be posted; None: a plain GET.
        seconds: time limit.

    Raises:
        OSError: no answer, or (urllib.error.HTTPError) one that is an error.
    """
    headers = {"Content-Type": "application/json", **secret_header(Path(stack.data))}
    data = None
    if body is not None:
        token = ask(stack, f"/csrf-token?client={CLIENT}", seconds=seconds)["token"]
        headers |= {"Prefect-Csrf-Client": CLIENT, "Prefect-Csrf-Token": token}
        data = json.dumps(body).encode()
    with open_loopback(urllib.request.Request(stack.api_url + path, data, headers), seconds) as answer:
        return json.load(answer)
