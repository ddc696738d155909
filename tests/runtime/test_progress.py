"""How far a stage has come: what its log says, and what each role has cost."""

import asyncio
import logging
from collections.abc import Callable

import pytest

from schemas.config import Config
from schemas.manifest import RoleCost
from storage.store import Store
from tasks.pipeline.iterations import run_stages
from tasks.runtime import progress
from tasks.runtime.progress import Progress, ProgressState, progress_line


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_a_log_says_the_end_of_each_phase_and_what_lies_between_only_now_and_then(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = logging.getLogger("nlac.test")
    with caplog.at_level(logging.INFO, log.name):
        counted = Progress("rollout", log=log)
        for unit in ("episodes", "texts"):
            counted.begin(2, unit)
            counted.advance()
            counted.advance()
        assert [line.split(",")[0] for line in lines(caplog)] == ["2/2 episodes", "2/2 texts"]
        monkeypatch.setattr(progress, "LOG_SECONDS", 0.0)
        counted.begin(2, "steps")
        counted.advance(loss=0.5)
        assert lines(caplog)[-1].startswith("1/2 steps") and lines(caplog)[-1].endswith("loss 0.5000")


def test_a_report_has_the_loss_the_costs_and_the_faults_of_that_moment() -> None:
    told: list[ProgressState] = []
    costs: dict[str, RoleCost] = {}
    counted = Progress("critic-sft", told.append, costs=lambda: (dict(costs), {"RateLimitError": 2}))
    counted.begin(3, "steps")
    costs["policy"] = RoleCost(texts=1, seconds=2.0) + RoleCost(texts=1, failed=1)
    counted.advance(loss=0.25)
    assert told[0].loss is None and told[0].roles == {}
    assert (told[1].loss, told[1].done) == (0.25, 1) and told[1].faults == {"RateLimitError": 2}
    assert told[1].roles == {"policy": RoleCost(texts=2, seconds=2.0, failed=1)}
    assert progress_line(told[1]) == "1/3 steps, loss 0.2500"


def test_a_committed_stage_s_log_says_what_was_done_and_its_manifest_what_each_role_cost(
    store: Store, make_config: Callable[..., Config]
) -> None:
    played = asyncio.run(run_stages(store, make_config(), ["rollout"]))
    said = (played.path / "stage.log").read_text(encoding="utf-8")
    steps = played.manifest.tables["transitions"].rows
    assert "rollout of iteration 0 of run 'trial': " in said
    assert "4/4 episodes" in said and "episodes: 4 rows\n" in said and f"transitions: {steps} rows\n" in said
    assert f"policy: {steps} texts, 0 scored" in said and "done: 4 items in" in said
    cost = played.manifest.roles["policy"]
    rows = played.scan("transitions").collect()["generation"].struct
    assert cost.completion_tokens == rows.field("completion_tokens").sum() and cost.texts == steps
    assert cost.prompt_tokens == rows.field("prompt_tokens").sum() and cost.seconds > 0
