"""A stage's coroutine beside Prefect's engine: its result, its error, and the end of the wait."""

import asyncio

import pytest

from flows.deployments.background import run_beside


def test_it_gives_what_the_coroutine_returns_and_ticks_at_least_once() -> None:
    ticks: list[int] = []

    async def work() -> int:
        return 7

    assert run_beside(work, lambda: ticks.append(1)) == 7
    assert ticks


def test_an_error_of_the_coroutine_is_raised() -> None:
    async def work() -> None:
        raise ValueError("no room")

    with pytest.raises(ValueError, match="no room"):
        run_beside(work, lambda: None)


def test_what_interrupts_the_wait_cancels_the_coroutine_which_may_still_close_its_engines() -> None:
    closed: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            closed.append("engines")

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_beside(work, interrupted, seconds=0.01)
    assert closed == ["engines"]
