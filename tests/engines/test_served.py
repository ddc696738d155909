"""A real vLLM server that the program starts: one start for many engines, adapters, sleep, crashes."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tasks.chat.messages import Message
from tasks.engines.backends import build_engine
from tasks.engines.protocol import Adapter, Completion, Engine, EngineDied, Request, Sampling
from tasks.engines.vllm.server_records import Server, read_server, server_dir
from tasks.engines.vllm.servers import put_to_sleep, serving
from tests.support.own_server import OwnServer
from tests.support.processes import all_end
from tests.support.processor import computes_long

pytestmark = pytest.mark.vllm

QUESTION = (Message(role="user", content="Name a number."),)
OTHER_PROCESS = """
import asyncio, sys
from pathlib import Path
from schemas.config import EngineSection, ModelSection
from tasks.engines.backends import build_engine
from tasks.chat.messages import Message
from tasks.engines.protocol import Request, Sampling

async def ask():
    section, model, cache = sys.argv[1:]
    engine = build_engine(
        EngineSection.model_validate_json(section), ModelSection.model_validate_json(model), Path(cache)
    )
    question = (Message(role="user", content="Name a number."),)
    print("said", (await engine.generate(Request(question, Sampling(max_tokens=4)))).completion_tokens)
    await engine.close()

asyncio.run(ask())
"""


def build(server: OwnServer) -> Engine:
    return build_engine(server.section, server.model, server.cache_dir)


def running(server: OwnServer) -> tuple[Path, Server]:
    folder = server_dir(server.section, server.model, server.cache_dir)
    found = read_server(folder)
    assert found is not None
    return folder, found


def read(server: Server, path: str) -> str:
    request = urllib.request.Request(
        server.root_url + path, headers={"Authorization": f"Bearer {server.key}"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def get(server: Server, path: str) -> Any:
    return json.loads(read(server, path))


def test_nothing_but_health_is_answered_without_the_key(own_server: OwnServer) -> None:
    engine = build(own_server)
    _, server = running(own_server)
    for path in ("/v1/models", "/metrics", "/version", "/openapi.json"):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(server.root_url + path, timeout=10)
    with urllib.request.urlopen(f"{server.root_url}/health", timeout=10) as answer:
        assert answer.status == 200
    asyncio.run(engine.close())


def models(server: Server) -> set[str]:
    return {entry["id"] for entry in get(server, "/v1/models")["data"]}


def starts(folder: Path) -> int:
    return len((folder / "starts.jsonl").read_text().splitlines())


def ask(adapter: Adapter | None = None, max_tokens: int = 4) -> Request:
    return Request(QUESTION, Sampling(max_tokens=max_tokens), adapter)


def test_adapters_come_with_the_engine_that_asks_for_them_and_go_with_it(
    own_server: OwnServer, real_adapter: Adapter
) -> None:
    async def check() -> None:
        engine = build(own_server)
        folder, server = running(own_server)
        assert models(server) == {"base"}
        await asyncio.gather(
            *(engine.generate(ask(adapter)) for adapter in (None, real_adapter, real_adapter))
        )
        assert models(server) == {"base", real_adapter.digest}
        second = build(own_server)
        assert await second.generate(ask(real_adapter))
        await engine.close()
        assert models(server) == {"base"}
        assert await second.generate(ask(real_adapter))  # unloaded by the other: loaded again
        await second.close()
        assert models(server) == {"base"}
        assert starts(folder) == 1

    asyncio.run(check())


def test_another_process_uses_the_server_that_runs(own_server: OwnServer) -> None:
    own_server.address()
    folder, before = running(own_server)
    arguments = [
        own_server.section.model_dump_json(),
        own_server.model.model_dump_json(),
        str(own_server.cache_dir),
    ]
    done = subprocess.run(
        [sys.executable, "-c", OTHER_PROCESS, *arguments], env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert "said" in done.stdout, done.stderr
    assert running(own_server)[1] == before and starts(folder) == 1


def test_it_sleeps_when_no_stage_uses_it_and_wakes_for_the_next(own_server: OwnServer) -> None:
    async def check() -> None:
        engine = build(own_server)
        _, server = running(own_server)
        assert put_to_sleep(own_server.cache_dir) == []
        assert not get(server, "/is_sleeping")["is_sleeping"]  # in use
        await engine.close()
        assert put_to_sleep(own_server.cache_dir) == []
        assert get(server, "/is_sleeping")["is_sleeping"]
        engine = build(own_server)
        assert not get(server, "/is_sleeping")["is_sleeping"]
        assert isinstance(await engine.generate(ask()), Completion)
        await engine.close()

    asyncio.run(check())


def test_a_server_that_dies_takes_its_requests_and_its_processes_along(own_server: OwnServer) -> None:
    async def check() -> None:
        engine = build(own_server)
        folder, server = running(own_server)
        below = psutil.Process(server.supervisor).children(recursive=True)
        (vllm,) = (
            p for p in psutil.Process(server.supervisor).children() if "api_server" in " ".join(p.cmdline())
        )
        # Else an answer can be at its end before the kill.
        endless = replace(ask(max_tokens=1500), regex="[0-9]{400}")
        asked = [asyncio.create_task(engine.generate(endless)) for _ in range(3)]
        await engine.generate(ask(max_tokens=1))  # came later, so the endless ones are under way
        vllm.send_signal(signal.SIGKILL)
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(result) for result in results] == [EngineDied] * 3
        assert "Run the stage again" in str(results[0]) and str(folder / "server.log") in str(results[0])
        await engine.close()
        assert all_end(below, 15)
        assert read_server(folder) is None

    asyncio.run(check())


def test_a_server_that_does_not_start_says_why(own_server: OwnServer) -> None:
    section = own_server.section.model_copy(update={"options": {"no_such_argument": 1}})
    with pytest.raises(EngineDied, match=r"does not start .*unrecognized arguments: --no-such-argument=1"):
        build_engine(section, own_server.model, own_server.cache_dir)


@pytest.mark.long
@computes_long
def test_every_replica_of_a_data_parallel_server_has_the_adapter_and_sleeps(
    own_server: OwnServer, real_adapter: Adapter, tmp_path: Path
) -> None:
    """As in the files of configs/cluster."""
    section = own_server.section.model_copy(
        update={"options": {"data_parallel_size": 2, "disable_log_stats": None}}
    )
    replicas = OwnServer(section, own_server.model, tmp_path)

    async def answers(engine: Engine, adapter: Adapter | None) -> set[str]:
        # One request for each replica at a time: a sum's rounding depends on how many are computed together.
        pairs = [await asyncio.gather(*(engine.generate(ask(adapter)) for _ in range(2))) for _ in range(4)]
        return {completion.text for pair in pairs for completion in pair}

    async def check() -> None:
        engine = build(replicas)
        _, server = running(replicas)
        said = [await answers(engine, adapter) for adapter in (None, real_adapter)]
        assert all(len(texts) == 1 for texts in said), "replicas with other weights would say other things"
        assert answered(server).keys() == {"0", "1"} and min(answered(server).values()) > 0
        await engine.close()
        assert put_to_sleep(tmp_path) == [] and get(server, "/is_sleeping")["is_sleeping"]
        engine = build(replicas)
        assert await answers(engine, real_adapter) == said[1]
        await engine.close()

    with serving([section], replicas.model, tmp_path):
        asyncio.run(check())


def answered(server: Server) -> dict[str, float]:
    """Requests that each replica has answered, by its number."""
    found: dict[str, float] = {}
    for replica, count in re.findall(
        r'^vllm:request_success_total\{engine="(\d+)".*\} (\S+)$', read(server, "/metrics"), re.M
    ):
        found[replica] = found.get(replica, 0) + float(count)
    return found
