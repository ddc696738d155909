"""Weights change as seldom as the requests allow, and never under a request."""

import asyncio
from pathlib import Path

import pytest

from tasks.engines.protocol import Adapter, EngineDied
from tasks.engines.vllm.turns import Turns

A, B = (Adapter(name, Path(name), name) for name in "ab")


class Engine:
    """Notes what is loaded, and finds requests that are under way meanwhile."""

    def __init__(self) -> None:
        self.loads: list[str] = []
        self.asked = 0
        self.turns = Turns(self.load)

    async def load(self, adapter: Adapter | None) -> None:
        assert not self.asked
        self.loads.append("")
        await asyncio.sleep(0)
        self.loads[-1] = adapter.digest if adapter else "own"

    async def ask(self, *adapters: Adapter | None) -> None:
        for adapter in adapters:
            async with self.turns.under(adapter):
                self.asked += 1
                await asyncio.sleep(0)
                assert self.loads[-1] == (adapter.digest if adapter else "own")
                self.asked -= 1


def test_versions_take_turns_and_each_serves_all_who_wait_for_it() -> None:
    async def check() -> list[str]:
        engine = Engine()
        await asyncio.gather(*(engine.ask(A, B, B, None) for _ in range(50)))
        return engine.loads

    assert asyncio.run(check()) == ["a", "b", "own"]


def test_a_request_that_follows_at_once_keeps_its_weights_before_those_who_wait() -> None:
    async def check() -> list[str]:
        engine = Engine()
        await asyncio.gather(engine.ask(A, A, A), engine.ask(B))
        return engine.loads

    assert asyncio.run(check()) == ["a", "b"]


def test_the_weights_for_which_most_requests_wait_come_first() -> None:
    async def check() -> list[str]:
        engine = Engine()
        await asyncio.gather(engine.ask(B), *(engine.ask(A, B) for _ in range(3)))
        return engine.loads

    assert asyncio.run(check()) == ["a", "b"]


def test_weights_that_can_not_be_loaded_fail_their_request_and_no_other() -> None:
    async def check() -> None:
        engine = Engine()
        good = engine.turns._load

        async def load(adapter: Adapter | None) -> None:
            if adapter is B:
                raise EngineDied("no room")
            await good(adapter)

        engine.turns = Turns(load)
        results = await asyncio.gather(*map(engine.ask, (A, B, None)), return_exceptions=True)
        assert [type(result) for result in results] == [type(None), EngineDied, type(None)]
        assert engine.loads == ["a", "own"]

    asyncio.run(check())


def test_a_request_that_is_given_up_does_not_keep_others_waiting() -> None:
    async def check() -> list[str]:
        engine = Engine()
        under_way = asyncio.Event()

        async def endless() -> None:
            async with engine.turns.under(A):
                under_way.set()
                await asyncio.Event().wait()

        given_up = asyncio.create_task(endless())
        await under_way.wait()
        waiting = asyncio.create_task(engine.ask(B))
        await asyncio.sleep(0)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        await waiting
        return engine.loads

    assert asyncio.run(check()) == ["a", "b"]
