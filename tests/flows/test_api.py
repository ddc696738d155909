"""Flow runs that come in several answers of Prefect's server, which gives no more than a page at once."""

import asyncio
import json
from pathlib import Path
from uuid import UUID

import pytest
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import FlowRunFilter

from flows.stack import api
from flows.stack.record import Stack
from tests.support.local_http import LocalHttp, answering

RUNS = [{"id": str(UUID(int=n)), "flow_id": str(UUID(int=0)), "name": f"run-{n}"} for n in range(7)]


def test_all_pages_are_read_or_the_first_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "PAGE", 3)
    servers: list[LocalHttp] = []

    def answer(asked: str) -> tuple[int, bytes]:
        if asked != "POST /api/flow_runs/filter":
            return 200, json.dumps(
                {"token": "t", "client": "c", "expiration": "2100-01-01T00:00:00Z"}
            ).encode()
        wanted = json.loads(servers[0].bodies[-1])
        return 200, json.dumps(RUNS[wanted["offset"] :][: wanted["limit"]]).encode()

    async def read(url: str) -> list[str]:
        async with PrefectClient(url) as client:
            return [run.name for run in await api.read_flow_runs(client, FlowRunFilter())]

    with answering(answer) as server:
        servers.append(server)
        stack = Stack(pid=0, port=server.port, data=str(tmp_path), state="ready")
        names = [run["name"] for run in RUNS]
        assert [one["name"] for one in api.ask_flow_runs(stack, {})] == names
        assert [one["name"] for one in api.ask_flow_runs(stack, {}, first_page=True)] == names[:3]
        assert asyncio.run(read(f"{server.url}/api")) == names
        monkeypatch.setattr(api, "PAGE", 7)  # a full last page
        assert len(api.ask_flow_runs(stack, {})) == 7
