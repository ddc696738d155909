"""What the flows tell MLflow, and what happens where it can not be told."""

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun

from flows.deployments.tracking import UNTRACKED, PromptTexts, Tracking, run_id
from prompts import template_text
from schemas.config import Config
from storage.store import Store
from tests.support.committed import commit_rows


@pytest.mark.parametrize("own", [None, "{% block system %}mine{% endblock %}"])
def test_a_stage_s_prompts_are_those_it_rendered_the_run_s_own_above_the_shipped_ones(
    tmp_path: Path, own: str | None
) -> None:
    config = Config()
    if own:
        (tmp_path / "own.j2").write_text(own)
        config = Config.model_validate({"roles": {"refine": {"template": str(tmp_path / "own.j2")}}})
    rendered = {"refine": "0", "correct_thought": "1"}
    committed = commit_rows(Store(tmp_path / "data"), "refinement", 0, {}, prompts=rendered)
    texts = PromptTexts(config)(committed)
    assert texts == {
        "refine": own or template_text("refine"),
        "correct_thought": template_text("correct_thought"),
    }


def test_an_iteration_goes_on_where_mlflow_can_not_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path / "data")
    committed = commit_rows(store, "rollout", 0, {})
    (store.root / ".mlflow").write_text("in the way")

    async def iteration() -> None:
        tracking = Tracking(store, Config(run="trial"), 0)
        address = await tracking.begin("rollout")
        assert address == UNTRACKED and run_id(address) is None
        tracking.finish(address, "rollout", FlowRun(flow_id=uuid4()))
        tracking.reuse(committed)
        await tracking.begin("critique")  # writes what was put off
        tracking.fail(UNTRACKED, "no room")
        await tracking.close(finished=False)

    asyncio.run(iteration())
    assert "is left out" in caplog.text
