"""One thread that computes the requests of many asyncio tasks in batches.

A batch begins when the event loop of those tasks is at rest, so its contents depend on the requests, not on the speed
of the machine. Requests that arrive while a batch runs join the next one, or this one if the computation asks for
more. Each job's future is set as soon as its own result is known, so no caller waits for the slowest of its batch. A
failing batch fails only its own jobs. One that memory does not hold is computed again in halves, and later batches are
no larger than those. If the thread itself ends, every caller is told.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tasks.chat.messages import RequestError
from tasks.engines.memory import is_out_of_memory, release_cached
from tasks.engines.protocol import EngineDied

logger = logging.getLogger(__name__)

# An event loop is at rest when no job has arrived during QUIET_S seconds, which leaves time for answers from threads
# and processes, and then during TURNS turns of the loop: a task takes a few turns from a response to its next request.
# After LINGER_S seconds only the turns count.
QUIET_S, LINGER_S, TURNS = 0.01, 0.2, 32


@dataclass(eq=False)
class Job:
    """One request in the queue. Only jobs of equal `group` share a batch; `size` brings jobs of similar length
    together."""

    payload: Any
    group: Hashable
    size: tuple[int, ...]
    rows: int  # how many jobs like this one fit into a batch
    restart: Callable[[], None] = lambda: None  # forgets what was computed of it
    answers: Answers | None = None  # of the loop in which the caller waits
    future: asyncio.Future[Any] | None = None  # what the caller waits for
    answered: bool = False

    @property
    def left(self) -> bool:
        """Whether the caller has stopped waiting."""
        return self.future is not None and self.future.cancelled()

    def finish(self, result: Any) -> None:
        """Give the caller its result, unless the caller has gone or has a result already."""
        self._answer(result, None)

    def fail(self, error: RequestError | EngineDied) -> None:
        """Give the caller an error, likewise."""
        self._answer(None, error)

    def _answer(self, result: Any, error: Exception | None) -> None:
        if not self.answered and self.answers is not None and self.future is not None:
            self.answered = True
            self.answers.send(self.future, result, error)


class Answers:
    """Answers on their way from the thread to the tasks of one event loop, which wakes up once for many of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._sent: deque[tuple[asyncio.Future[Any], Any, Exception | None]] = deque()

    def send(self, future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
        """Called by the thread alone, so that the first of several answers wakes the loop, which takes them all."""
        self._sent.append((future, result, error))
        if len(self._sent) == 1:
            with suppress(RuntimeError):  # the loop is closed, so no task waits
                self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        while self._sent:
            future, result, error = self._sent.popleft()
            if future.done():
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)


def choose(pending: Sequence[Job]) -> list[Job]:
    """The next batch: the oldest job, so that none starves, and the jobs of its group nearest to it in size."""
    oldest = pending[0]
    alike = [job for job in pending if job.group == oldest.group]
    distance = {
        size: tuple(abs(a - b) for a, b in zip(size, oldest.size, strict=True))
        for size in {job.size for job in alike}
    }
    alike.sort(key=lambda job: distance[job.size])
    return alike[: min(job.rows for job in alike[: oldest.rows])]


class BatchWorker:
    """Runs `compute(jobs)` on its own thread.

    Args:
        compute: sets the futures of its jobs; may raise.
        name: of the thread.
    """

    def __init__(self, compute: Callable[[list[Job]], None], name: str) -> None:
        self._compute = compute
        self._pending: list[Job] = []
        self._running: list[Job] = []
        self._arrived = 0
        self._answers: Answers | None = None  # to the loop of the tasks that submit jobs
        self._watched: asyncio.AbstractEventLoop | None = None  # will report when it is at rest
        self._resting: asyncio.Task[None] | None = None  # a reference, since loops keep only weak ones
        self._rests = False
        self._closing = False
        self._ended: EngineDied | None = None  # why the thread has ended by itself
        self._most = sys.maxsize  # jobs of a batch; fewer once memory did not hold one
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def closing(self) -> bool:
        """Whether close was called; long computations check it."""
        return self._closing

    async def submit(self, job: Job) -> Any:
        """Queue a job and wait for its result. Cancelling the wait withdraws the job, unless it already runs.

        Raises:
            RequestError: the job failed, its batch failed, or the engine was closed.
            EngineDied: the thread has ended.
        """
        with self._changed:
            if self._ended:
                raise self._ended
            if self._closing:
                raise RequestError("the engine is closed")
            loop = asyncio.get_running_loop()
            if self._answers is None or self._answers.loop is not loop:
                self._answers = Answers(loop)
            job.answers, job.future = self._answers, loop.create_future()
            self._pending.append(job)
            self._arrived += 1
            if self._watched is not loop:  # else the thread sleeps until the loop is at rest
                self._changed.notify()
        return await job.future

    def more(self, like: Job, most: int, rank: Callable[[Job], int]) -> list[Job]:
        """Waiting jobs that join the running batch; called by the computation. No group starves another for ever: a
        task that waits for a response sends no requests, so a group's requests come to an end.

        Args:
            like: a job of the group to take from.
            most: at most so many jobs.
            rank: the lowest come first; of equal ones, those that have waited longest.
        """
        with self._changed:
            self._forget_cancelled()
            alike = [job for job in self._pending if job.group == like.group]
            joined = self._take(sorted(alike, key=rank)[:most] if alike else [])
            self._running += joined
            return joined

    def close(self) -> None:
        """End the thread and fail the queued jobs. Idempotent; blocks until the current step is over."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        try:
            while batch := self._next_batch():
                self._answer(batch)
        except BaseException as error:
            logger.exception("the thread that computes requests has ended")
            with self._changed:
                self._ended = EngineDied(
                    f"the thread that computes requests has ended ({type(error).__name__}: {error}). Run the stage "
                    "again: it goes on from the requests that were answered"
                )
                for job in (*self._running, *self._pending):
                    job.fail(self._ended)
        for job in self._pending:
            job.fail(RequestError("the engine was closed before this request ran"))

    def _answer(self, batch: list[Job]) -> None:
        """Set the futures of a batch's jobs, and of those that join it."""
        batches = [batch]
        while batches:
            self._running = batches.pop()
            left: list[Job] = []
            try:
                self._compute(list(self._running))
            except Exception as error:
                left = [job for job in self._running if not (job.answered or job.left)]
                if len(left) < 2 or not is_out_of_memory(error):
                    logger.exception("a batch of %d requests failed", len(self._running))
                    reason = f"{type(error).__name__}: {str(error).strip() or 'no message'}"
                    failure = RequestError(f"the batch failed: {reason}")
                    for job in self._running:
                        job.fail(error if isinstance(error, RequestError) else failure)
                    left = []
            if left:  # here the error is gone, whose traceback held the memory
                batches += self._halves(left)
                continue
            for job in self._running:
                job.fail(RequestError("the engine gave no result for this request"))
        self._running = []

    def _halves(self, left: list[Job]) -> list[list[Job]]:
        """Two batches of the jobs that memory did not hold together, the first one last."""
        half = (len(left) + 1) // 2
        self._most = min(self._most, half)
        logger.warning("memory did not hold a batch of %d requests; it goes on with %d", len(left), half)
        release_cached()
        for job in left:
            job.restart()
            job.rows = min(job.rows, self._most)
        return [left[half:], left[:half]]

    def _next_batch(self) -> list[Job]:
        """Blocks until there is a batch; empty when closing."""
        with self._changed:
            while not self._closing:
                self._forget_cancelled()
                # A rest counts once: the responses of a batch wake the tasks that wait for them.
                rested, self._rests = self._rests, False
                if self._pending and rested:
                    if batch := self._take(choose(self._pending)[: self._most]):
                        return batch
                elif self._pending and self._answers and self._watched is not self._answers.loop:
                    self._watch()
                else:
                    self._changed.wait()
            return []

    def _watch(self) -> None:
        """Have the loop report when it is at rest. It first handles what it was given before, such as responses."""
        assert self._answers is not None
        loop = self._watched = self._answers.loop

        def begin() -> None:
            self._resting = loop.create_task(self._rest(loop))

        try:
            loop.call_soon_threadsafe(begin)
        except RuntimeError:  # the loop is closed, so no task waits for these jobs
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
        self._pending = [job for job in self._pending if not job.left]

    def _take(self, chosen: Sequence[Job]) -> list[Job]:
        """Remove jobs from the queue; returns those whose callers still wait."""
        taken = set(map(id, chosen))
        self._pending = [job for job in self._pending if id(job) not in taken]
        for job in chosen:
            job.rows = min(job.rows, self._most)
        return [job for job in chosen if not job.left]
