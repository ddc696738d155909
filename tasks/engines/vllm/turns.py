"""Requests under one set of weights at a time, for an engine that holds no second set.

A merged adapter or a full checkpoint replaces all weights. Requests for those that are loaded go on at once. Requests
for others wait until none of them is left. Then those for which most requests wait are loaded. A task that waits sends
no further request, so each gets its turn.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from tasks.engines.protocol import Adapter

QUIET_SECONDS = 0.2
"""Without a request before weights change, so that what follows answers at once is known by then."""


class Turns:
    """Whose turn it is. For one event loop.

    Args:
        load: replaces the weights by those of an adapter, or by the model's own; no request is under way then. What it
            raises goes to the request that asked first, and nothing is loaded after that.
    """

    def __init__(self, load: Callable[[Adapter | None], Awaitable[None]]) -> None:
        self._load = load
        self._loaded: str | None = None  # digest; "": the model's own; None: nothing, or they are changing
        self._running = 0  # requests let in, and a request that changes the weights
        self._waiting: dict[str, list[asyncio.Future[bool]]] = {}  # by digest
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def under(self, adapter: Adapter | None) -> AsyncIterator[None]:
        """A request's span: with the weights of an adapter, or with the model's own."""
        digest = adapter.digest if adapter else ""
        loads = False
        if self._loaded == digest:
            self._running += 1
        else:
            loads = await self._wait(digest)
        try:
            if loads:
                await self._load(adapter)
                self._loaded = digest
                self._let_in(self._waiting.pop(digest, []))
            yield
        finally:
            self._leave()

    async def _wait(self, digest: str) -> bool:
        """Wait to be let in; returns whether the weights are to be loaded first."""
        ours: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(digest, []).append(ours)
        self._rest()
        try:
            return await ours
        except asyncio.CancelledError:
            if ours.done() and not ours.cancelled():  # let in meanwhile
                self._leave()
            raise

    def _let_in(self, waiting: list["asyncio.Future[bool]"]) -> None:
        for one in waiting:
            if not one.done():
                self._running += 1
                one.set_result(False)

    def _leave(self) -> None:
        self._running -= 1
        self._rest()

    def _rest(self) -> None:
        """Change weights in a while, if no request is under way then."""
        if self._timer is None and not self._running:
            self._timer = asyncio.get_running_loop().call_later(QUIET_SECONDS, self._next)

    def _next(self) -> None:
        """Have a request load its weights: of those for which most wait, the first."""
        self._timer = None
        left = {
            digest: [one for one in waiting if not one.done()] for digest, waiting in self._waiting.items()
        }
        self._waiting = {digest: waiting for digest, waiting in left.items() if waiting}
        if self._waiting and not self._running:
            waiting = self._waiting[max(self._waiting, key=lambda digest: len(self._waiting[digest]))]
            self._loaded = None
            self._running += 1
            waiting.pop(0).set_result(True)
