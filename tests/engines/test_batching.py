"""Batches: their contents depend on the requests, never on how long the callers take."""

import asyncio
import time
from collections.abc import Callable

import pytest
import torch

from tasks.chat.messages import RequestError
from tasks.engines.local import batching
from tasks.engines.local.batching import LINGER_S, QUIET_S, BatchWorker, Job
from tasks.engines.protocol import EngineDied


def job(payload: int, group: str = "", rows: int = 100) -> Job:
    return Job(payload, group, (0,), rows)


@pytest.mark.parametrize("pause", [0.0, 2 * QUIET_S, LINGER_S / 4])
def test_batches_are_the_same_however_slow_the_callers_are(pause: float) -> None:
    batches: list[list[int]] = []

    def compute(jobs: list[Job]) -> None:
        batches.append([job.payload for job in jobs])
        for one in jobs:
            one.finish(one.payload)

    async def episode(number: int) -> None:
        """Three turns; between an answer and the next request lie a few turns of the loop, and work that stops it."""
        for turn in range(3):
            for _ in range(number):
                await asyncio.gather(asyncio.sleep(0))
            time.sleep(pause)
            assert await worker.submit(job(10 * turn + number)) == 10 * turn + number

    async def episodes() -> None:
        await asyncio.gather(*map(episode, range(6)))

    worker = BatchWorker(compute, "test")
    asyncio.run(episodes())
    worker.close()
    assert [sorted(batch) for batch in batches] == [[10 * turn + n for n in range(6)] for turn in range(3)]


def test_a_batch_is_chosen_when_all_tasks_have_submitted() -> None:
    """More than fit wait too: who goes with whom would depend on how many had come when the thread looked."""
    batches: list[list[int]] = []

    def compute(jobs: list[Job]) -> None:
        batches.append([job.payload for job in jobs])
        for one in jobs:
            one.finish(None)

    async def ask(length: int) -> None:
        time.sleep(QUIET_S)
        await worker.submit(Job(length, "", (length,), rows=2))

    async def ask_all() -> None:
        await asyncio.gather(*map(ask, (5, 9, 1, 8, 4)))

    worker = BatchWorker(compute, "test")
    asyncio.run(ask_all())
    worker.close()
    assert batches == [[5, 4], [9, 8], [1]]


def test_a_worker_serves_one_loop_after_the_other() -> None:
    """One that ended before its request was taken up leaves nothing behind."""

    def compute(jobs: list[Job]) -> None:
        for one in jobs:
            one.finish(one.payload)

    async def ask() -> int:
        return await worker.submit(job(7))

    async def leave() -> None:
        waiting = asyncio.ensure_future(worker.submit(job(1)))
        await asyncio.sleep(0)
        waiting.cancel()

    worker = BatchWorker(compute, "test")
    for _ in range(3):
        asyncio.run(leave())
        assert asyncio.run(asyncio.wait_for(ask(), 10)) == 7
    worker.close()


def test_a_thread_that_ends_tells_those_who_wait_and_those_who_come(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def compute(jobs: list[Job]) -> None:
        raise SystemExit("on purpose")

    def chooses_none(pending: object) -> list[Job]:
        raise ValueError("nothing can be chosen")

    async def ask(worker: BatchWorker) -> None:
        waiting = [worker.submit(job(number, rows=2)) for number in range(5)]
        for said in await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 30):
            assert isinstance(said, EngineDied) and "Run the stage again" in str(said)
        with pytest.raises(EngineDied, match="the thread that computes requests has ended"):
            await worker.submit(job(9))

    ends, breaks = BatchWorker(compute, "ends"), BatchWorker(compute, "breaks")
    asyncio.run(ask(ends))
    monkeypatch.setattr(batching, "choose", chooses_none)
    asyncio.run(ask(breaks))
    assert "SystemExit" in caplog.text and "nothing can be chosen" in caplog.text
    ends.close()
    breaks.close()


def test_a_batch_that_memory_does_not_hold_is_computed_in_halves_and_later_ones_are_no_larger() -> None:
    batches: list[list[int]] = []
    begun: list[int] = []

    def compute(jobs: list[Job]) -> None:
        batches.append([job.payload for job in jobs])
        begun.extend(batches[-1])
        jobs[0].finish(jobs[0].payload)
        if len(jobs) > 3:
            torch.empty(1 << 50, dtype=torch.uint8)  # the allocator itself says that there is no room
        for one in jobs[1:]:
            one.finish(one.payload)

    async def ask(numbers: range) -> list[int]:
        jobs = [Job(number, "", (0,), 100, restart=lambda n=number: begun.remove(n)) for number in numbers]
        return await asyncio.gather(*map(worker.submit, jobs))

    worker = BatchWorker(compute, "test")
    assert asyncio.run(ask(range(11))) == list(range(11))
    assert [len(batch) for batch in batches] == [11, 5, 2, 2, 5, 2, 2]
    assert sorted(begun) == list(range(11)), "what was computed of the others was forgotten first"
    batches.clear()
    assert asyncio.run(ask(range(4))) == list(range(4))
    assert [len(batch) for batch in batches] == [2, 2]
    worker.close()


def test_one_request_that_memory_does_not_hold_fails_alone() -> None:
    def compute(jobs: list[Job]) -> None:
        if any(one.payload == 2 for one in jobs):
            torch.empty(1 << 50, dtype=torch.uint8)
        for one in jobs:
            one.finish(one.payload)

    async def ask() -> list[object]:
        return await asyncio.gather(*(worker.submit(job(n)) for n in range(4)), return_exceptions=True)

    worker = BatchWorker(compute, "test")
    *said, failed, last = asyncio.run(ask())
    worker.close()
    assert [*said, last] == [0, 1, 3] and isinstance(failed, RequestError)
    assert "allocate memory" in str(failed)


def test_a_computation_that_fails_fails_those_who_joined_it_too() -> None:
    def compute(jobs: list[Job]) -> None:
        jobs += worker.more(jobs[0], 5, lambda job: job.payload)
        taken.append([job.payload for job in jobs])
        raise ValueError("broken")

    async def checks() -> None:
        asked = [
            worker.submit(one) for one in (job(9, "a", 1), job(8, "a", 1), job(3, "b", 1), job(7, "a", 1))
        ]
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(r, RequestError) and "broken" in str(r) for r in results)

    taken: list[list[int]] = []
    worker = BatchWorker(compute, "test")
    asyncio.run(checks())
    worker.close()
    assert sorted(taken) == [[3], [9, 7, 8]]


def test_the_answers_of_a_batch_wake_the_loop_once() -> None:
    woken = 0

    def compute(jobs: list[Job]) -> None:
        for one in jobs:
            one.finish(one.payload)

    async def ask() -> list[int]:
        loop = asyncio.get_running_loop()
        wake = loop.call_soon_threadsafe

        def counted(callback: Callable[..., object], *args: object) -> asyncio.Handle:
            nonlocal woken
            woken += "_deliver" in repr(callback)
            return wake(callback, *args)

        loop.call_soon_threadsafe = counted  # type: ignore[method-assign,assignment]
        return await asyncio.gather(*(worker.submit(job(number)) for number in range(50)))

    worker = BatchWorker(compute, "test")
    assert asyncio.run(ask()) == list(range(50))
    worker.close()
    assert 1 <= woken < 50
