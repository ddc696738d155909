"""What a flow run is called, and what its log shows."""

import json
import logging
from pathlib import Path
from uuid import uuid4

import pytest

from flows.deployments.names import run_name, run_tags
from flows.deployments.reporting import name_this_run, stage_log_shown
from tests.flows.test_reporting import prefect_at


def test_names_and_tags_say_run_iteration_and_stage() -> None:
    assert run_name("critique", "trial", 3) == "critique-trial-3"
    assert run_tags("critique", "trial", 3) == ["run:trial", "iteration:3", "stage:critique"]
    assert run_name("training", "trial") == "training-trial"
    assert run_tags("training", "trial") == ["run:trial"]
    assert run_tags("iteration", "trial", 0) == ["run:trial", "iteration:0"]


@pytest.fixture
def started_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect's way to say which flow run this is."""
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__ID", str(uuid4()))
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__NAME", "copper-prawn")


def test_a_flow_run_names_itself_unless_it_was_dispatched_under_that_name(
    started_by_hand: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with prefect_at(lambda request: (204, b"")) as api:
        name_this_run("rollout", "trial", 0)
        [patched] = [request for request in api.asked if request.startswith("PATCH /api/flow_runs/")]
        [sent] = [
            json.loads(body)
            for request, body in zip(api.asked, api.bodies, strict=True)
            if request == patched
        ]
        assert sent["name"] == "rollout-trial-0"
        assert sent["tags"] == ["iteration:0", "run:trial", "stage:rollout"]


def test_a_flow_run_goes_on_where_it_can_not_be_named(
    started_by_hand: None, caplog: pytest.LogCaptureFixture
) -> None:
    with prefect_at(lambda request: (500, b"{}")):
        name_this_run("rollout", "trial", 0)
    assert "the flow run's name was not written" in caplog.text


def test_a_stage_s_log_is_shown_in_its_flow_run_as_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = logging.getLogger("tests.flow_run")
    lines: list[str] = []
    monkeypatch.setattr("flows.deployments.reporting.get_run_logger", lambda: shown)
    monkeypatch.setattr(shown, "log", lambda level, form, line: lines.append(line))
    stage = logging.getLogger("nlac.stage.1")
    stage.setLevel(logging.INFO)
    with stage_log_shown():
        stage.info("episodes: 3 rows, said \x1b[31mred")
    stage.info("after")
    assert lines == ["episodes: 3 rows, said \\x1b[31mred"]
