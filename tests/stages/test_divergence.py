"""A training stage that diverges leaves the run as it was."""

import asyncio
from collections.abc import Callable

import pytest

from schemas.config import Config
from storage.store import Store
from tasks.pipeline.runner import run_stage
from tasks.runtime.stage import StageFailed, StageInterrupted
from tests.support.iterations import Finished


@pytest.mark.filterwarnings("ignore")
def test_a_stage_that_diverges_commits_nothing_and_the_last_good_adapter_stays(
    make_config: Callable[..., Config], store: Store, finished: Finished
) -> None:
    finished(store, make_config())
    before = store.current("trial", 0)
    good = store.committed("trial", "critic-sft", 0)
    wild = make_config(critic={"learning_rate": 1e39, "epochs": 2})
    with pytest.raises(StageFailed, match=r"not finite|loss nan|loss inf") as failure:
        asyncio.run(run_stage(store, wild, "critic-sft", 0, force=True, frozen=False))
    assert not isinstance(failure.value, StageInterrupted), "trying again would not help"
    assert store.current("trial", 0) == before
    assert good is not None and store.committed("trial", "critic-sft", 0) == good
    good.check(content=True)
    assert list((store.run_dir("trial") / ".staging").iterdir()) == []
