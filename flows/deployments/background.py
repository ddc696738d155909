"""Run a stage's coroutine beside Prefect's flow engine, so that cancelling always reaches it."""

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from typing import Any, TypeVar

import psutil

T = TypeVar("T")

GRACE_SECONDS = 10.0


def run_beside(
    work: Callable[[], Coroutine[Any, Any, T]], tick: Callable[[], None], seconds: float = 1.0
) -> T:
    """Run a coroutine in a thread with its own event loop while this thread waits.

    Prefect cancels a run by raising in the main thread. In an event loop, the exception would end whichever callback
    runs at that moment, and be lost. Here it always ends the wait. The coroutine is then cancelled and gets
    GRACE_SECONDS to close its engines. If it is deep in a matrix product and does not notice, its child processes are
    ended here, and the thread ends with this process.

    Args:
        work: makes the coroutine.
        tick: called in this thread, at least every `seconds`, and once at the end.
        seconds: the interval.

    Raises:
        BaseException: what the coroutine raised, or what interrupted the wait.
    """
    outcome: Future[T] = Future()
    stop: list[Callable[[], None]] = []

    async def cancellable() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work())

        def cancel() -> None:
            loop.call_soon_threadsafe(task.cancel)

        stop.append(cancel)
        return await task

    def body() -> None:
        try:
            outcome.set_result(asyncio.run(cancellable()))
        except BaseException as error:  # noqa: BLE001  handed to the waiting thread, which raises it
            outcome.set_exception(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(body,), name="stage", daemon=True)
    thread.start()
    try:
        while not wait_for([outcome], timeout=seconds).done:
            tick()
    except BaseException:
        for cancel in stop:
            cancel()
        thread.join(GRACE_SECONDS)
        if thread.is_alive():
            for child in psutil.Process().children(recursive=True):
                child.kill()
        raise
    tick()
    return outcome.result()
