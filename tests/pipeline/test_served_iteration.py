"""An iteration over a vLLM server of its own: one start, and what happens when the server is killed in the middle."""

import asyncio
import json
import threading
import urllib.request

import psutil
import pytest

from schemas.config import Config
from storage.store import Store
from tasks.engines.dtype import Dtype
from tasks.engines.vllm.server_records import servers
from tasks.engines.vllm.servers import serving
from tasks.pipeline.iterations import run_iteration, run_stages
from tasks.runtime.stage import StageFailed
from tests.support.processor import computes_long
from tests.support.waiting import wait_until

pytestmark = pytest.mark.vllm


@pytest.fixture
def config(fast_dtype: Dtype) -> Config:
    """The base model plays, and does nothing else: one stage."""
    return Config.model_validate({
        "run": "trial",
        "algorithm": "react",
        "model": {"dtype": fast_dtype, "context_length": 2048},
        "engines": {"local": {"backend": "openai", "serve": {}, "max_batch": 2}},
        "evaluation": {"episodes": 6, "baseline": False},
        "rollout": {"max_steps": 4},
    })  # fmt: skip


def until_no_server_runs(store: Store) -> None:
    wait_until(
        lambda: not list(servers(store.cache_dir)), 20, "the server's end, which nobody wants any more"
    )


@pytest.mark.long
def test_one_start_serves_stages_before_and_after_training_through_which_it_sleeps(
    store: Store, config: Config
) -> None:
    pytest.importorskip("vllm")
    content = config.model_dump() | {
        "algorithm": "nlac",
        # The small model seldom ends a line by itself, and a target without an end is nothing to train on.
        "roles": {"bootstrap": {"engine": "rules"}, "correct": {"engine": "rules"}},
        "replay": {"transitions": 4},
        "rollout": {"episodes": 2, "max_steps": 2},
    }
    content["engines"]["local"]["serve"] = {"sleep": True}
    content["engines"]["rules"] = {"backend": "scripted", "rules": "tests.support.rules:number_game"}
    content |= {"improvement": {"states": 2, "rounds": 1}, "pools": {"shared_gpu": True}}
    nlac = Config.model_validate(content)

    async def stages(*names: str) -> bool:
        """Whether the server sleeps after them."""
        await run_stages(store, nlac, names)
        ((_, server),) = servers(store.cache_dir)
        known = {"Authorization": f"Bearer {server.key}"}
        request = urllib.request.Request(f"{server.root_url}/is_sleeping", headers=known)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return bool(json.load(answer)["is_sleeping"])

    with serving(nlac.engines.values(), nlac.model, store.cache_dir):
        assert not asyncio.run(stages("rollout", "bellman-targets", "cot-correction"))
        assert asyncio.run(stages("critic-sft"))
        assert not asyncio.run(stages("critique"))
        (starts,) = store.cache_dir.glob("servers/*/starts.jsonl")
        assert len(starts.read_text().splitlines()) == 1
    until_no_server_runs(store)


def kill_the_server_once_something_is_answered(store: Store) -> None:
    journals = "trial/.requests/*.journal"
    wait_until(
        lambda: any(path.stat().st_size for path in store.root.glob(journals)), 600, "an answer", every=0.05
    )
    ((_, server),) = servers(store.cache_dir)
    children = psutil.Process(server.supervisor).children()
    (vllm,) = (p for p in children if "api_server" in " ".join(p.cmdline()))
    vllm.kill()


@pytest.mark.long
@computes_long
def test_a_killed_server_fails_the_stage_by_name_and_running_again_goes_on_from_its_answers(
    store: Store, config: Config
) -> None:
    pytest.importorskip("vllm")
    killer = threading.Thread(target=kill_the_server_once_something_is_answered, args=(store,))
    killer.start()
    with pytest.raises(
        StageFailed, match=r"evaluation: the vLLM server at .* has ended: .* Run the stage again"
    ):
        asyncio.run(run_iteration(store, config))
    killer.join()
    (result,) = asyncio.run(run_iteration(store, config))
    episodes = result.committed.scan("episodes").collect()
    assert episodes["status"].to_list() == ["ok"] * 6
    (starts,) = store.cache_dir.glob("servers/*/starts.jsonl")
    assert len(starts.read_text().splitlines()) == 2
    until_no_server_runs(store)
