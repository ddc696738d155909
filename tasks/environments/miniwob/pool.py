"""As many browsers as may run at once in this process; an episode waits for one."""

import asyncio
from collections import deque
from concurrent.futures import Future
from functools import cache
from threading import Lock

from tasks.environments.miniwob.browser import Browser


class Pool:
    """Browsers, each lent to one episode at a time. Event loops and threads may share it.

    Args:
        size: of browsers that run at once.
        seconds: time for a browser's answer.
    """

    def __init__(self, size: int, seconds: float) -> None:
        self._lock = Lock()
        self._free = [Browser(seconds) for _ in range(size)]
        self._waiting: deque[Future[Browser]] = deque()

    async def take(self) -> Browser:
        """A browser that nobody else uses; waits until one is free."""
        with self._lock:
            if self._free:
                return self._free.pop()
            place: Future[Browser] = Future()
            self._waiting.append(place)
        try:
            return await asyncio.wrap_future(place)
        except asyncio.CancelledError:
            if not place.cancel() and not place.cancelled():
                self.give_back(place.result())  # it came too late
            raise

    def give_back(self, browser: Browser) -> None:
        """Lend a browser to whoever has waited longest."""
        with self._lock:
            while self._waiting:
                place = self._waiting.popleft()
                if place.set_running_or_notify_cancel():
                    place.set_result(browser)
                    return
            self._free.append(browser)


@cache
def shared_pool(size: int, seconds: float) -> Pool:
    """The pool of this process, one for each size and time, because episodes are instances of their own."""
    return Pool(size, seconds)
