"""One thread that computes what many asyncio tasks ask for, a batch at a time.

A batch begins when the event loop whose tasks ask has come to rest: what it is made of follows from what was asked,
not from how fast the machine was. Requests that arrive while a batch runs join the next one, or this one, if the
computation asks for more. A job's future is filled as soon as its own result is known, so no caller waits for the
slowest of its batch. A batch that fails fails its own jobs and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any

from tasks.chat.messages import RequestError

logger = logging.getLogger(__name__)

# An event loop rests when no job has come for QUIET_S, for answers from threads and processes (of which no more is
# awaited after LINGER_S), and for TURNS of the loop: from an answer to its next request a task takes a few.
QUIET_S, LINGER_S, TURNS = 0.01, 0.2, 32


@dataclass(eq=False)
class Job:
    """One request on its way. Jobs share a batch only if their `group` is equal; `size` orders them so
    that jobs of like length meet."""

    payload: Any
    group: Hashable
    size: tuple[int, ...]
    rows: int  # most jobs like this one that fit into a batch
    future: Future[Any] = field(default_factory=Future)

    def finish(self, result: Any) -> None:
        """Hand the caller its result; nothing happens if it has gone or has one already."""
        try:
            self.future.set_result(result)
        except InvalidStateError:
            return

    def fail(self, error: RequestError) -> None:
        """Hand the caller an error, likewise."""
        try:
            self.future.set_exception(error)
        except InvalidStateError:
            return


def choose(pending: Sequence[Job]) -> list[Job]:
    """The next batch: the oldest job (so none starves) and those of its group that are nearest to it in
    size."""
    oldest = pending[0]

    alike = [job for job in pending if job.group == oldest.group]
    distance = {
        size: tuple(abs(a - b) for a, b in zip(size, oldest.size, strict=True))
        for size in {job.size for job in alike}
    }
    alike.sort(key=lambda job: distance[job.size])
    return alike[: min(job.rows for job in alike[: oldest.rows])]


class BatchWorker:
    """Runs `compute(jobs)` on a thread of its own.

    Args:
        compute: fills the futures of the jobs it is given; may raise.
        name: of the thread.
    """

    def __init__(self, compute: Callable[[list[Job]], None], name: str) -> None:
        self._compute = compute
        self._pending: list[Job] = []
        self._running: list[Job] = []
        self._arrived = 0
        self._loop: asyncio.AbstractEventLoop | None = None  # whose tasks ask
        self._watched: asyncio.AbstractEventLoop | None = None  # the loop that will tell when it rests
        self._resting: asyncio.Task[None] | None = None  # a loop alone would let it be collected
        self._rests = False
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def closing(self) -> bool:
        """Whether close was called; long computations look at it."""
        return self._closing

    async def submit(self, job: Job) -> Any:
        """Queue a job and wait for its result. Cancelling the wait takes only this job back, unless it runs already.

        Raises:
            RequestError: the job failed, its batch failed, or the engine was closed.
        """
        with self._changed:
            if self._closing:
                raise RequestError("the engine is closed")
            self._pending.append(job)
            self._arrived += 1
            self._loop = asyncio.get_running_loop()
            if self._watched is not self._loop:  # else the thread sleeps until the loop rests
                self._changed.notify()
        return await asyncio.wrap_future(job.future)

    def more(self, like: Job, most: int, rank: Callable[[Job], int]) -> list[Job]:
        """Waiting jobs that join the batch being computed; called by the computation. No group starves another for
        ever: who waits for an answer asks for nothing meanwhile, so in the end a group's requests are all answered.

        Args:
            like: of whose group they are.
            most: how many at most.
            rank: the lowest come first, of equal ones those that have waited longest.
        """
        with self._changed:
            self._forget_cancelled()
            alike = [job for job in self._pending if job.group == like.group]
            joined = self._take(sorted(alike, key=rank)[:most] if alike else [])
            self._running += joined
            return joined

    def close(self) -> None:
        """End the thread after failing what is queued. Idempotent; blocks until the current step is over."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while batch := self._next_batch():
            self._running = list(batch)
            try:
                self._compute(batch)
            except Exception as error:
                logger.exception("a batch of %d requests failed", len(self._running))
                reason = f"{type(error).__name__}: {str(error).strip() or 'no message'}"
                failure = (
                    error if isinstance(error, RequestError) else RequestError(f"the batch failed: {reason}")
                )
                for job in self._running:
                    job.fail(failure)
            for job in self._running:
                job.fail(RequestError("the engine gave no result for this request"))
        for job in self._pending:
            job.fail(RequestError("the engine was closed before this request ran"))

    def _next_batch(self) -> list[Job]:
        """Blocks until there is something to compute; empty when closing."""
        with self._changed:
            while not self._closing:
                self._forget_cancelled()
                # It rests once: the answers of a batch wake those who wait for them.
                rested, self._rests = self._rests, False
                if self._pending and rested:
                    if batch := self._take(choose(self._pending)):
                        return batch
                elif self._pending and self._watched is not self._loop:
                    self._watch()
                else:
                    self._changed.wait()
            return []

    def _watch(self) -> None:
        """Have the loop say when it rests. What was handed to it before, such as answers, comes first."""
        loop = self._watched = self._loop
        assert loop is not None

        def begin() -> None:
            self._resting = loop.create_task(self._rest(loop))

        try:
            loop.call_soon_threadsafe(begin)
        except RuntimeError:  # closed: nobody waits for these jobs any more
            self._watched, self._rests = None, True

    async def _rest(self, loop: asyncio.AbstractEventLoop) -> None:
        began, seen = time.monotonic(), -1
        try:
            while seen != self._arrived:
                seen = self._arrived
                if time.monotonic() < began + LINGER_S:
                    await asyncio.sleep(QUIET_S)
                for _ in range(TURNS):
                    await asyncio.sleep(0)
        finally:
            with self._changed:
                if self._watched is loop:
                    self._watched, self._rests = None, True
                self._changed.notify()

    def _forget_cancelled(self) -> None:
        self._pending = [job for job in self._pending if not job.future.cancelled()]

    def _take(self, chosen: Sequence[Job]) -> list[Job]:
        """Chosen jobs, no longer waiting; without those whose callers have gone."""
        taken = set(map(id, chosen))
        self._pending = [job for job in self._pending if id(job) not in taken]
        return [job for job in chosen if job.future.set_running_or_notify_cancel()]
