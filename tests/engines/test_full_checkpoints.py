"""Servers of full checkpoints: one version after another, and never two at once.

What stands for vLLM locks a file that stands for the GPU. A second server, or what it started, would find it locked.
"""

import asyncio
import os
import signal
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.reliability.configurations import STAND_IN
from schemas.config import EngineSection, ModelSection, ServeSection
from schemas.load import PROJECT_ROOT
from tasks.chat.messages import Message, RequestError
from tasks.engines.protocol import Adapter, ScoreRequest
from tasks.engines.vllm.served import ServedEngine
from tasks.engines.vllm.server_records import read_server, server_dir, servers
from tasks.engines.vllm.servers import put_to_sleep, serving
from tests.support.tiny import make_tiny_checkpoint
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

QUESTION = (Message(role="user", content="Guess a number from 1 to 100."),)


@dataclass(frozen=True)
class Place:
    """A data root's cache, a model in full training, and two versions of it."""

    cache_dir: Path
    section: EngineSection
    model: ModelSection
    versions: tuple[Adapter, Adapter]

    def engine(self, **changes: int) -> ServedEngine:
        return ServedEngine(self.section.model_copy(update=changes), self.model, self.cache_dir)

    @property
    def folder(self) -> Path:
        return server_dir(self.section, self.model, self.cache_dir)

    def run(self, check: Coroutine[Any, Any, None], *more: EngineSection) -> None:
        """Run a test's coroutine as an iteration runs its stages."""
        with serving([self.section, *more], self.model, self.cache_dir):
            asyncio.run(check)

    def starts(self) -> int:
        return len((self.folder / "starts.jsonl").read_text().splitlines())


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(STAND_IN), str(PROJECT_ROOT)]))
    monkeypatch.setenv("NLAC_STAND_IN_GPU", str(tmp_path / "gpu"))
    checkpoint = make_tiny_checkpoint(
        tmp_path / "model", ["Guess a number. Thought: it is low. Action: [50]"]
    )
    versions = []
    for name, digest in (("a", "a" * 64), ("b", "b" * 64)):
        (tmp_path / name).mkdir()
        versions.append(Adapter(name, tmp_path / name, digest))
    first, second = versions
    section = EngineSection(backend="openai", max_batch=4, serve=ServeSection(start_seconds=600))
    model = ModelSection(name=str(checkpoint), dtype="float32", train="full")
    return Place(tmp_path / "cache", section, model, (first, second))


async def say(engine: ServedEngine, adapter: Adapter | None, text: str = "a guess") -> tuple[float, ...]:
    """What the weights of a version say of a text."""
    (scores,) = (await engine.score(ScoreRequest(QUESTION, (text,), adapter))).segments
    return scores


def test_versions_are_served_in_turn_each_once_for_all_who_ask(place: Place) -> None:
    a, b = place.versions

    async def check() -> None:
        engine = place.engine()
        texts = ["one", "two", "three"] * 3
        asked = [say(engine, adapter, text) for text in texts for adapter in (None, a, b)]
        answers = await asyncio.gather(*asked)
        assert place.starts() == 3
        said = [answers[of::3] for of in range(3)]
        assert said[0] != said[1] != said[2] != said[0]
        assert await asyncio.gather(*(say(engine, b, text) for text in texts)) == said[2]
        assert place.starts() == 3, "the last one is there still"
        await engine.close()

    place.run(check())


def test_a_server_in_use_is_left_alone_until_its_stage_is_done(place: Place) -> None:
    a, b = place.versions

    async def check() -> None:
        one, other = place.engine(), place.engine()
        before = await say(one, a)
        waiting = asyncio.create_task(say(other, b))
        assert [await say(one, a) for _ in range(20)] == [before] * 20
        assert not waiting.done()
        await one.close()
        assert await waiting
        await other.close()

    place.run(check())


def test_a_stage_that_gives_up_during_a_start_keeps_nobody_from_theirs(place: Place) -> None:
    a, b = place.versions

    async def check() -> None:
        one, other = place.engine(), place.engine()
        given_up = asyncio.create_task(say(one, a))
        await asyncio.to_thread(wait_until, lambda: read_server(place.folder), 60, "the start of a server")
        given_up.cancel()
        await one.close()
        assert await say(other, b)
        await other.close()

    place.run(check())


def test_a_server_of_another_configuration_ends_first(place: Place) -> None:
    a, _ = place.versions
    wide = place.section.model_copy(update={"max_batch": 8})

    async def check() -> None:
        for changes in ({}, {"max_batch": 8}):
            engine = place.engine(**changes)
            await say(engine, a)
            await engine.close()
        ((folder, _),) = servers(place.cache_dir)
        assert folder == server_dir(wide, place.model, place.cache_dir) != place.folder

    place.run(check(), wide)


def test_training_finds_no_server_of_full_weights(place: Place) -> None:
    async def check() -> None:
        engine = place.engine()
        await say(engine, None)
        assert put_to_sleep(place.cache_dir) == [] and read_server(place.folder) is not None, "in use"
        await engine.close()
        assert await asyncio.to_thread(put_to_sleep, place.cache_dir) == []
        assert list(servers(place.cache_dir)) == []
        assert not (place.folder / "server.json").exists()

    place.run(check())


def test_the_next_version_waits_for_what_a_killed_supervisor_has_left(place: Place) -> None:
    a, b = place.versions

    async def check() -> None:
        engine = place.engine()
        await say(engine, a)
        server = read_server(place.folder)
        assert server is not None and len(server.processes) >= 2
        os.kill(server.supervisor, signal.SIGKILL)
        assert await say(engine, b)
        await engine.close()

    place.run(check())


def test_an_adapter_is_refused_where_full_checkpoints_are_served(place: Place) -> None:
    (a, _) = place.versions
    (a.path / "adapter_config.json").write_text("{}")

    async def check() -> None:
        engine = place.engine()
        with pytest.raises(
            RequestError, match=r"is not what model\.train: full leaves; set model\.train back"
        ):
            await say(engine, a)
        await engine.close()

    asyncio.run(check())
    assert not place.folder.exists()
