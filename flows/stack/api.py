"""Requests to the stack's Prefect API: over plain HTTP for commands that are quicker without Prefect's client, and
pages of flow runs by either way."""

import json
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.stack.private import secret_header, stack_secret
from flows.stack.record import Stack
from tasks.loopback import open_loopback

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.filters import FlowRunFilter, WorkPoolFilter
    from prefect.client.schemas.objects import FlowRun

CLIENT = "nlac"  # the name under which CSRF tokens are drawn
PAGE = 200  # flow runs of an answer; the server gives no more


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
    headers = {
        "Content-Type": "application/json",
        **secret_header(stack.secret or stack_secret(Path(stack.data))),
    }
    data = None
    if body is not None:
        token = ask(stack, f"/csrf-token?client={CLIENT}", seconds=seconds)["token"]
        headers |= {"Prefect-Csrf-Client": CLIENT, "Prefect-Csrf-Token": token}
        data = json.dumps(body).encode()
    with open_loopback(urllib.request.Request(stack.api_url + path, data, headers), seconds) as answer:
        return json.load(answer)


def ask_flow_runs(stack: Stack, wanted: Mapping[str, Any], *, first_page: bool = False) -> list[Any]:
    """The flow runs that a filter finds, by its `sort`; all, or those of the first page. Raises as `ask`."""
    found: list[Any] = []
    while True:
        page = ask(stack, "/flow_runs/filter", {**wanted, "limit": PAGE, "offset": len(found)})
        found += page
        if first_page or len(page) < PAGE:
            return found


async def read_flow_runs(
    client: "PrefectClient", flow_runs: "FlowRunFilter", pools: "WorkPoolFilter | None" = None
) -> "list[FlowRun]":
    """All flow runs that the filters find."""
    from prefect.client.schemas.sorting import FlowRunSort

    found: list[FlowRun] = []
    while True:
        page = await client.read_flow_runs(
            flow_run_filter=flow_runs,
            work_pool_filter=pools,
            sort=FlowRunSort.ID_DESC,
            limit=PAGE,
            offset=len(found),
        )
        found += page
        if len(page) < PAGE:
            return found
