"""The stages as deployments: their entrypoints, and which of them hold the GPU."""

from contextlib import nullcontext

import pytest

from flows.deployments import stages
from flows.deployments.stages import gpu_slot
from flows.stack.environment import STACK_MARK
from schemas.config import Config, PoolsSection
from tasks.pipeline.registry import STAGES


def test_every_stage_is_an_entrypoint_and_nothing_else_is() -> None:
    for stage in STAGES:
        flow = getattr(stages, stage.replace("-", "_"))
        assert flow.name == "nlac" and set(flow.parameters.properties) >= {
            "run",
            "config",
            "iteration",
            "force",
        }
    with pytest.raises(AttributeError, match="no stage is called no-such-stage"):
        stages.no_such_stage  # noqa: B018


def test_the_gpu_is_held_where_pools_share_one_by_the_stages_that_use_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(STACK_MARK, "any")
    shared, apart = (Config(pools=PoolsSection(shared_gpu=value)) for value in (True, False))
    assert {stage for stage in STAGES if not isinstance(gpu_slot(shared, stage), nullcontext)} == {
        stage for stage, made in STAGES.items() if made.pool in ("inference", "training")
    }
    assert all(isinstance(gpu_slot(apart, stage), nullcontext) for stage in STAGES)
    monkeypatch.delenv(STACK_MARK)
    assert all(isinstance(gpu_slot(shared, stage), nullcontext) for stage in STAGES), (
        "a pod has its GPU alone"
    )
