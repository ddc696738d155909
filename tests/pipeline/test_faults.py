"""An outage is no data: a stage whose engine or environment fails commits nothing, keeps its answers and goes on."""

import asyncio
import errno
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from schemas.config import Config
from schemas.rows import Row
from storage.store import Store
from tasks.engines.openai import UNANSWERED
from tasks.engines.request_journal import RequestJournal
from tasks.pipeline.faults import refuse_outage
from tasks.pipeline.runner import run_stage
from tasks.runtime.stage import StageInterrupted
from tests.support.committed import table
from tests.support.local_http import answering
from tests.support.rows import episode, generation, transitions

SAID = {"role": "assistant", "content": "Thought: halves are quick\nAction: [5]"}
ANSWER = json.dumps({"choices": [{"index": 0, "finish_reason": "stop", "message": SAID}]}).encode()


@dataclass
class Server:
    """Answers so many requests, then none."""

    left: int

    def __call__(self, request: str) -> tuple[int, bytes]:
        self.left -= 1
        return (200, ANSWER) if self.left >= 0 else (500, b"{}")


def asks(make_config: Callable[..., Config], url: str, **changes: Any) -> Config:
    """The number game, evaluated with a policy on a server."""
    remote = {
        "backend": "openai",
        "base_url": url,
        "model": "m",
        "max_batch": 2,
        "options": {"max_retries": 0},
    }
    rules = {"backend": "scripted", "rules": "tests.support.rules:number_game"}
    return make_config(
        algorithm="react",
        engines={"rules": rules, "remote": remote},
        roles={"policy": {"engine": "remote", "structured": False}},
        evaluation={"episodes": 8, "baseline": False},
        **changes,
    )


def test_a_stage_whose_server_dies_commits_nothing_and_goes_on_from_what_was_answered(
    make_config: Callable[..., Config], store: Store
) -> None:
    server = Server(left=1_000)
    with answering(server) as local:
        config = asks(make_config, f"{local.url}/v1")
        whole = asyncio.run(run_stage(store, config, "evaluation", 0)).committed
        needed = len(local.asked)
        server.left = 10
        local.asked.clear()
        with pytest.raises(StageInterrupted, match=f"left {UNANSWERED} requests in a row without an answer"):
            asyncio.run(run_stage(store, config, "evaluation", 0, force=True))
        assert 10 + UNANSWERED <= len(local.asked) <= 10 + UNANSWERED + 2, (
            "a dead server is not asked further"
        )
        assert store.committed("trial", "evaluation", 0) == whole
        server.left = 1_000
        local.asked.clear()
        asyncio.run(run_stage(store, config, "evaluation", 0, force=True))
    assert len(local.asked) == needed - 10
    assert table(store, "evaluation", "evaluations")["coverage"].item() == 1.0


@pytest.mark.parametrize("allowed", [0.05, 1.0])
def test_evaluations_of_episodes_that_failed_are_data_only_where_the_configuration_says_so(
    make_config: Callable[..., Config], store: Store, allowed: float
) -> None:
    with answering(lambda request: (400, b"{}")) as refusing:
        config = asks(make_config, f"{refusing.url}/v1", faults={"max_failed_share": allowed})
        if allowed < 1:
            with pytest.raises(StageInterrupted, match=r"failed 8 of 8 episodes.* The first: server .*Bad"):
                asyncio.run(run_stage(store, config, "evaluation", 0))
            assert store.committed("trial", "evaluation", 0) is None
            return
        asyncio.run(run_stage(store, config, "evaluation", 0))
    row = table(store, "evaluation", "evaluations").row(0, named=True)
    assert (row["coverage"], row["success_rate"]) == (0.0, None)


def test_a_full_disk_is_named_though_many_requests_meet_it_at_once(
    make_config: Callable[..., Config], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(journal: RequestJournal, key: str, answer: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "some.journal")

    monkeypatch.setattr(RequestJournal, "put", full)
    with pytest.raises(OSError, match=r"No space left on device: 'some\.journal'"):
        asyncio.run(run_stage(store, make_config(), "rollout", 0))
    assert store.committed("trial", "rollout", 0) is None


def episodes(**statuses: int) -> list[Row]:
    """So many episodes of each status."""
    return [
        episode(status=status, error=status) for status, number in statuses.items() for _ in range(number)
    ]


unanswered = transitions(episode())[0].model_copy(
    update={"generation": generation("base").model_copy(update={"finish_reason": "error"})}
)


@pytest.mark.parametrize(
    ("rows", "fails"),
    [
        (episodes(ok=57, engine_error=3), False),
        (episodes(ok=56, engine_error=4), True),
        (episodes(ok=6, engine_error=2), False),  # fewer than three
        (episodes(engine_error=8), True),
        (episodes(engine_error=1, speaker_error=1, environment_error=1), True),
        (episodes(malformed=8, speaker_unreadable=8, verifier_timeout=8, unreadable_verdict=8), False),
        ([unanswered] * 3, True),  # of a row that stands without the text that failed
        ([], False),
    ],
)
def test_faults_of_engines_and_environments_count_and_malformed_answers_do_not(
    rows: Sequence[Row], fails: bool
) -> None:
    if not fails:
        return refuse_outage("rollout", {"episodes": rows}, 0.05)
    with pytest.raises(StageInterrupted, match=r"more than faults\.max_failed_share 0\.05 allows"):
        refuse_outage("rollout", {"rejects": [], "episodes": rows}, 0.05)
