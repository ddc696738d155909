"""Batches: their contents depend on the requests, never on how long the callers take."""

import asyncio
import time

import pytest

from tasks.chat.messages import RequestError
from tasks.engines.local.batching import LINGER_S, QUIET_S, BatchWorker, Job


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
