"""The process that checks answers: whatever a verifier does, a score or a status comes back, soon."""

import asyncio
import time

import pytest

from tasks.environments.base import EpisodeFailed
from tasks.environments.verifier import Verified, VerifierUnusable, compute, verify


def check(name: str, answer: str = "ab", seconds: float = 0.2) -> Verified:
    return asyncio.run(verify(f"tests.support.verifiers:{name}", answer, seconds=seconds))


def test_a_score_comes_back_whatever_the_verifier_prints() -> None:
    assert check("half") == Verified(1.0)
    assert check("half", "abc\n{}") == Verified(3.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["spins", "deep", "sleeps"])
def test_a_hang_is_ended_and_scores_nothing(name: str) -> None:
    check("half")  # starts the process
    began = time.monotonic()
    found = check(name)
    assert (found.score, found.status) == (0.0, "verifier_timeout")
    assert time.monotonic() - began < 10
    assert check("half").score == 1.0, "another process has taken its place"


@pytest.mark.slow
def test_a_crash_and_an_exception_say_what_they_were() -> None:
    assert check("ends") == Verified(0.0, "verifier_crash", "its process ended with exit code 3")
    grown = check("grows")
    assert (grown.score, grown.status) == (0.0, "verifier_error") and "MemoryError" in str(grown.error)


@pytest.mark.slow
def test_answers_that_are_checked_at_once_keep_to_their_own() -> None:
    async def together() -> list[Verified]:
        names = ["half", "ends"] * 10
        calls = (
            verify(f"tests.support.verifiers:{name}", "a" * number, seconds=2)
            for number, name in enumerate(names)
        )
        return await asyncio.gather(*calls)

    found = asyncio.run(together())
    assert [one.score for one in found] == [0 if n % 2 else n / 2 for n in range(20)]
    assert {one.status for one in found[1::2]} == {"verifier_crash"}


def test_a_function_that_is_not_there_is_no_wrong_answer() -> None:
    with pytest.raises(VerifierUnusable, match=r"tests\.support\.verifiers:missing can't be imported"):
        check("missing")


@pytest.mark.slow
def test_sets_have_one_order_in_every_process() -> None:
    def order() -> list[str]:
        return list(asyncio.run(compute("tests.support.verifiers:order", seconds=2)))

    first = order()
    for _ in range(3):
        check("ends")
    assert order() == first
    with pytest.raises(EpisodeFailed, match=r"verifiers:ends\('a',\): ended with exit code 3"):
        asyncio.run(compute("tests.support.verifiers:ends", "a", seconds=2))


@pytest.mark.slow
def test_only_what_was_ended_leaves_an_answer_unjudged() -> None:
    timeout, crash, error = (check(name).failure for name in ("spins", "ends", "grows"))
    assert timeout and crash and error and check("half").failure is None
    assert (timeout.status, crash.status, error.status) == ("verifier_timeout", "verifier_crash", "ok")
    assert (timeout.valid, crash.valid, error.valid) == (True, True, False)
    assert all(step.done and step.reward == 0 and not step.success for step in (timeout, crash, error))
