"""A stage that computes while its progress can't be shown."""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_CLIENT_CSRF_SUPPORT_ENABLED,
    PREFECT_CLIENT_MAX_RETRIES,
    temporary_settings,
)

from flows.deployments.background import run_beside
from flows.deployments.progress import ProgressFile
from flows.deployments.reporting import Reporter, publish_report, publish_result
from storage.store import Store
from tasks.runtime.progress import ProgressState
from tests.support.committed import commit_rows
from tests.support.local_http import LocalHttp, answering


@contextmanager
def prefect_at(answer: Callable[[str], tuple[int, bytes]]) -> Iterator[LocalHttp]:
    """Prefect's client meets a server that answers so."""
    with answering(answer) as server:
        ours = {
            PREFECT_API_URL: f"{server.url}/api",
            PREFECT_CLIENT_CSRF_SUPPORT_ENABLED: False,
            PREFECT_CLIENT_MAX_RETRIES: 0,
        }
        with temporary_settings(ours):
            yield server


def at(done: int) -> ProgressState:
    return ProgressState("rollout", done, 8, "episodes", 1.0)


def computed(reporter: Reporter, states: list[ProgressState]) -> str:
    """What a computation gives that reports these states, each of which is published."""
    seen = 0

    async def work() -> str:
        for state in states:
            reporter.report(state)
            before = seen
            while seen == before:
                await asyncio.sleep(0)
        return "hours of work"

    def tick() -> None:
        nonlocal seen
        reporter.publish()
        seen += 1

    return run_beside(work, tick, seconds=0.001)


def test_a_computation_goes_on_where_its_progress_can_not_be_published(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / ".stack").write_text("in the way")  # as little can be written as on a full disk
    with prefect_at(lambda request: (500, b"{}")):
        assert computed(Reporter(tmp_path, "trial", 0), [at(1), at(2), at(3)]) == "hours of work"
    assert caplog.text.count("the progress file was not written") == 1, "said once, not each second"
    assert caplog.text.count("the progress artifact was not written") == 1
    assert "500" in caplog.text


def test_a_progress_artifact_that_was_deleted_is_made_again_and_the_file_does_not_wait_for_it(
    tmp_path: Path,
) -> None:
    made = iter([str(uuid4()), str(uuid4())])
    gone: list[str] = []

    def answer(request: str) -> tuple[int, bytes]:
        if request.startswith("PATCH") and not gone:
            gone.append(request)
            return 404, b"{}"
        if request.startswith("POST /api/artifacts"):
            return 201, json.dumps({"id": next(made), "key": "rollout-progress", "data": 0.0}).encode()
        return 204, b""

    with prefect_at(answer) as api:
        assert computed(Reporter(tmp_path, "trial", 0), [at(n) for n in (1, 2, 3, 4)]) == "hours of work"
    sent = [request.split(" ")[0] for request in api.asked if "/artifacts" in request]
    assert sent == ["POST", "PATCH", "POST", "PATCH"]
    shown = ProgressFile.read(tmp_path, "trial", "rollout", 0.0)
    assert shown is not None and shown.state.done == 4


def test_a_committed_stage_is_not_failed_by_the_artifact_that_tells_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path / "data")
    with prefect_at(lambda request: (500, b"{}")):
        publish_result(store, commit_rows(store, "rollout", 0, {}), None)
        assert asyncio.run(publish_report(store, "trial", 0)) is not None, "MLflow can still show it"
    assert "the result's artifact was not written" in caplog.text
