"""Episodes in MLflow's trace viewer: which ones, with which spans and tags, linked to the iteration's run."""

import json
from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise

import pytest
from mlflow import MlflowClient
from mlflow.entities import Trace

from schemas.config import Config
from storage.mlflow.bridge import Bridge
from storage.store import Store
from tasks.export.traces import episode_traces, sampled
from tests.support.committed import commit_rows
from tests.support.iterations import Finished
from tests.support.rows import episode, transitions


def test_a_sample_is_spread_evenly_and_is_all_where_there_are_fewer() -> None:
    assert sampled(["a", "b", "c", "d", "e", "f"], 3) == ["a", "c", "e"]
    assert sampled(["a", "b"], 3) == ["a", "b"]
    assert sampled(["a"], 0) == []


@pytest.fixture
def traced(
    store: Store, make_config: Callable[..., Config], finished: Finished
) -> tuple[Bridge, list[Trace]]:
    """Two episodes of each split of a finished iteration."""
    finished(store, make_config(improvement={"states": 6, "futures": 2, "action": "replayed"}))
    bridge = Bridge(store.root)
    made = list(episode_traces(store, "trial", 0, 2))
    assert bridge.log_traces("trial", 0, made) == 4
    assert bridge.log_traces("trial", 0, made) == 0, "each is written once"
    client = MlflowClient(tracking_uri=bridge.uri)
    [experiment] = client.search_experiments(filter_string="name = 'trial'")
    return bridge, list(client.search_traces(locations=[experiment.experiment_id]))


def test_a_trace_has_a_span_per_step_and_its_model_calls_below_and_is_linked_to_the_iteration(
    traced: tuple[Bridge, list[Trace]], store: Store
) -> None:
    bridge, traces = traced
    client = MlflowClient(tracking_uri=bridge.uri)
    assert sorted(trace.info.tags["nlac.split"] for trace in traces) == ["eval", "eval", "train", "train"]
    for trace in traces:
        tags = trace.info.tags
        assert (tags["nlac.run"], tags["nlac.iteration"]) == ("trial", "0")
        linked = client.get_run(trace.info.trace_metadata["mlflow.sourceRun"])
        assert linked.data.tags["nlac.kind"] == "iteration"
        folder = "rollout" if tags["nlac.split"] == "train" else "evaluation"
        committed = store.committed("trial", folder, 0)
        assert committed is not None
        own = committed.scan("episodes").collect().filter(episode_id=tags["nlac.episode"])
        assert tags["nlac.success"] == str(own["success"].item()).lower()
        spans = {span.span_id: span for span in trace.data.spans}
        [root] = [span for span in spans.values() if span.parent_id is None]
        steps = [span for span in spans.values() if span.parent_id == root.span_id]
        assert [span.name for span in steps] == [f"step {n}" for n in range(own["steps"].item())]
        calls = [span for span in spans.values() if span.span_type == "CHAT_MODEL"]
        policy = [span for span in calls if span.name == "policy"]
        assert {span.parent_id for span in policy} == {span.span_id for span in steps}
        assert policy[0].inputs["messages"][0]["role"] == "system"
        assert policy[0].outputs["choices"][0]["message"]["content"]
        assert trace.info.token_usage["output_tokens"] > 0  # type: ignore[index]
        assert all(a.start_time_ns <= b.start_time_ns for a, b in pairwise(steps))
    names = {span.name for trace in traces for span in trace.data.spans}
    assert {"backup", "critique", "refinement"} <= names, "of a transition that its own iteration drew"
    read = [s for t in traces for s in t.data.spans if s.name.startswith("evaluator reads")]
    assert read and read[0].inputs["messages"] and json.dumps(read[0].outputs).count("evaluator: ")


def test_a_deleted_run_leaves_no_trace_and_one_of_its_name_gets_its_own(
    traced: tuple[Bridge, list[Trace]], store: Store
) -> None:
    bridge, before = traced
    assert bridge.forget_run("trial")
    client = MlflowClient(tracking_uri=bridge.uri)
    assert client.search_traces(locations=[before[0].info.experiment_id]) == []
    assert bridge.log_traces("trial", 0, episode_traces(store, "trial", 0, 1)) == 2


def test_what_others_wrote_is_traced_as_text(store: Store) -> None:
    hostile = "\x1b]8;;http://x\x07<script>[a](http://x)\u202e"
    said = {"observation": hostile, "action": hostile, "next_observation": hostile, "generation": None}
    told = {"task_id": hostile, "policy_version": hostile, "status": "environment_error", "error": hostile}
    played = episode(**told)
    steps = [step.model_copy(update=said) for step in transitions(played)]
    commit_rows(store, "rollout", 0, {"episodes": [played], "transitions": steps})
    [trace] = episode_traces(store, "trial", 0, 1)
    texts = json.dumps(asdict(trace), ensure_ascii=False)
    assert texts.count("<script>[a](http://x)") > 6, "the viewer shows texts, not markup"
    assert "\\u001b" not in texts and not {"\x1b", "\x07", "\u202e"} & set(texts)


def test_no_episode_is_traced_where_none_is_wanted(store: Store) -> None:
    assert list(episode_traces(store, "trial", 0, 0)) == []
