"""The process that checks answers: whatever a verifier does, a score or a status comes back, soon."""

import asyncio
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from schemas.config import EnvironmentSection
from tasks.environments import UnusableEnvironment, make_environment, verifier
from tasks.environments.base import EpisodeFailed, Task
from tasks.environments.isolation import NOBODY, why_not
from tasks.environments.math import Math
from tasks.environments.verifier import Verified, VerifierUnusable, check_isolation, compute, verify

isolates = pytest.mark.skipif(why_not() is not None, reason=f"no process can be confined here: {why_not()}")


def found(name: str, *arguments: Any) -> Any:
    return asyncio.run(compute(f"tests.support.verifiers:{name}", *arguments, seconds=5))


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


@isolates
def test_an_answer_that_runs_as_code_reads_and_writes_nothing(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("kept")
    if os.geteuid() == 0:
        os.chown(kept, NOBODY, NOBODY)  # the user that an answer has then owns it
    before = kept.stat()
    with socket.create_server(("127.0.0.1", 0)) as server:
        tried = found("hostile", str(tmp_path), server.getsockname()[1])
    assert tried.pop("import") == "done", "what Python itself needs can be read"
    assert {name for name, outcome in tried.items() if outcome == "done"} == set()
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (kept.stat().st_mode, kept.stat().st_mtime, kept.read_text()) == (
        before.st_mode,
        before.st_mtime,
        "kept",
    )


def test_an_answer_sees_nothing_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "sk-planted")
    monkeypatch.setattr(verifier, "_OWN", type(verifier._OWN)())  # a process that starts now
    seen = found("environment")
    assert "sk-planted" not in json.dumps(seen)
    known = {"PYTHONPATH", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE", "PATH", "LC_ALL"}
    assert set(seen) <= known | {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"}


@isolates
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_root_is_nobody_while_an_answer_is_verified() -> None:
    assert set(found("identity")) == {NOBODY}


def test_each_answer_has_a_process_of_its_own() -> None:
    assert [check("counts").score for _ in range(3)] == [1.0, 1.0, 1.0]


FORGED = (
    '{"unusable": "x"}', '{"value": []}', '{"value": NaN}', "[" * 5000, '{"value": 1}\n{"value": 2}', "{}", "3", "\0",
)  # fmt: skip


@pytest.mark.parametrize("text", FORGED)
def test_what_an_answer_forges_is_a_row_of_its_own(text: str) -> None:
    forged = check("forges", text)
    assert forged.score == 0 and forged.status in ("verifier_error", "verifier_crash")
    assert check("half") == Verified(1.0), "the next answer is none the worse"


def test_without_isolation_answers_are_refused_unless_that_is_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verifier, "why_not", lambda: "no landlock")
    with pytest.raises(ValueError, match=r"countdown.* no landlock.* set allow_unisolated to true"):
        check_isolation("reasoning_gym/countdown", allow_unisolated=False)
    assert not check_isolation("reasoning_gym/countdown", allow_unisolated=True)
    with pytest.raises(UnusableEnvironment, match=r"math: its scorer .* allow_unisolated"):
        make_environment(EnvironmentSection(name="math", options={}))
    made = make_environment(EnvironmentSection(name="math", options={"allow_unisolated": True}))
    assert isinstance(made, Math)
    problem = made.problems("train")[0]
    asyncio.run(made.reset(Task(f"train/{problem.problem_id}", "train", 0)))
    assert asyncio.run(made.step(problem.answer)).success
