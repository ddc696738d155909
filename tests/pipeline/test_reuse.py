"""Reuse, resumption and recomputation: only what changed runs again, and the reason is named."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.config import Config
from schemas.manifest import Manifest, StageKey
from storage import locks
from storage.store import Committed, Store, StoreError
from tasks.algorithms import ALGORITHMS
from tasks.chat.messages import RequestError
from tasks.engines.protocol import Request
from tasks.pipeline.decision import decide
from tasks.pipeline.iterations import begin_iteration, run_iteration
from tasks.pipeline.runner import StageResult, carry_out, run_stage
from tasks.runtime.stage import StageInterrupted
from tests.support.iterations import Finished, Iterate, dies


def reused(results: list[StageResult]) -> list[str]:
    return [r.committed.manifest.stage for r in results if r.reused]


def test_a_second_run_of_the_same_iteration_reuses_everything(
    store: Store, make_config: Callable[..., Config], iterate: Iterate
) -> None:
    config = make_config()
    first = iterate(config, 0)
    assert reused(first) == []
    again = iterate(config, 0)
    assert reused(again) == list(ALGORITHMS["nlac"].stages)
    assert [r.committed.path for r in again] == [r.committed.path for r in first]


@pytest.mark.slow
def test_a_failed_stage_is_where_the_next_run_goes_on(
    store: Store,
    make_config: Callable[..., Config],
    iterate: Iterate,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    notes = tmp_path / "requests"
    monkeypatch.setenv("NLAC_TEST_COUNT", str(notes))
    config = make_config(rules="tests.support.rules:counted")
    whole = Store(tmp_path / "whole")
    iterate(config, at=whole)
    total = len(notes.read_text().splitlines())
    targets = whole.committed("trial", "bellman-targets", 0).scan("bellman_targets").collect()
    died_at = len(whole.committed("trial", "rollout", 0).scan("transitions").collect()) + 20

    notes.unlink()
    monkeypatch.setenv("NLAC_TEST_DIE_AT", str(died_at))
    with dies():
        asyncio.run(run_iteration(store, config))
    assert set(store.current("trial", 0).stages) == {"rollout"}
    assert not list(store.root.glob("trial/bellman-targets/**/*.parquet"))
    monkeypatch.delenv("NLAC_TEST_DIE_AT")
    results = iterate(config)
    assert reused(results) == ["rollout"]
    # only the request in flight when it died was made twice
    assert len(notes.read_text().splitlines()) == total + 1
    assert store.committed("trial", "bellman-targets", 0).scan("bellman_targets").collect().equals(targets)
    assert not list(store.root.glob("trial/.requests/*"))


class Killed(BaseException):
    """Stands for SIGKILL: nothing runs after it."""


class KilledAfterCommit(Store):
    """A store whose process ends right after a commit."""

    def commit(self, folder: Path, manifest: Manifest) -> Committed:
        super().commit(folder, manifest)
        raise Killed


def test_a_kill_right_after_a_recomputation_leaves_later_stages_stale(
    store: Store, make_config: Callable[..., Config], finished: Finished
) -> None:
    config = make_config()
    finished(store, config)
    with pytest.raises(Killed):
        asyncio.run(run_stage(KilledAfterCommit(store.root), config, "critique", 0, force=True))
    stages = list(ALGORITHMS["nlac"].stages)
    later = stages[stages.index("critique") + 1 :]
    assert [name for name, entry in store.current("trial", 0).stages.items() if entry.stale] == later


def test_a_stage_that_another_process_computes_is_interrupted_and_touches_nothing(
    store: Store, make_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "ORPHAN_SECONDS", 0.0)
    key = StageKey(stage="rollout", run="trial", iteration=0)
    with store.computing(key), pytest.raises(StageInterrupted, match="another process computes rollout"):
        asyncio.run(run_stage(store, make_config(), "rollout", 0))
    assert not list(store.root.glob("trial/.requests/*")) and not list(store.root.glob("trial/.staging/*"))
    asyncio.run(run_stage(store, make_config(), "rollout", 0))


@pytest.mark.parametrize("force", [False, True], ids=["first", "forced"])
def test_a_stage_that_another_process_commits_after_the_decision_is_not_committed_twice(
    store: Store, make_config: Callable[..., Config], force: bool
) -> None:
    config = make_config()
    if force:
        asyncio.run(run_stage(store, config, "rollout", 0))
    decision = decide(store, config, "rollout", 0, force=force)
    made = asyncio.run(run_stage(store, config, "rollout", 0, force=force)).committed
    late = asyncio.run(carry_out(store, config, decision))
    assert (late.reused, late.committed.path) == (True, made.path)
    assert late.reasons == ("another process committed it meanwhile",)
    assert len(list(made.path.parent.iterdir())) == 1 + force


def tired(request: Request) -> str:
    """A player who never answers."""
    raise RequestError("too tired")


def test_the_log_of_a_failed_stage_is_kept_until_the_stage_is_committed(
    store: Store, make_config: Callable[..., Config]
) -> None:
    log = store.stage_log(StageKey(stage="rollout", run="trial", iteration=0))
    for attempt in (1, 2):
        with pytest.raises(StageInterrupted) as failure:
            asyncio.run(run_stage(store, make_config("tests.pipeline.test_reuse:tired"), "rollout", 0))
        assert f"the stage's log: {log}" in failure.value.__notes__
        assert log.read_text().count("ERROR the stage failed") == attempt
        assert str(failure.value) in log.read_text()
    made = asyncio.run(run_stage(store, make_config(), "rollout", 0)).committed
    assert not log.exists() and (made.path / "stage.log").read_text().count("ERROR") == 2


def test_a_changed_field_recomputes_the_stages_that_use_it(
    store: Store, make_config: Callable[..., Config], finished: Finished
) -> None:
    finished(store, make_config())
    changed = make_config(improvement={"states": 5})
    for stage in ALGORITHMS["nlac"].stages:
        decision = decide(store, changed, stage, 0, frozen=False)
        assert decision.reuse is (stage != "critique"), stage
    (reason,) = decide(store, changed, "critique", 0, frozen=False).reasons
    assert reason == "config: improvement.states: 6 -> 5"
    assert decide(store, changed, "critique", 0).reuse  # frozen: what is committed keeps its configuration


def test_paths_and_concurrency_change_nothing(
    store: Store, make_config: Callable[..., Config], finished: Finished
) -> None:
    config = make_config()
    finished(store, config)
    rules = config.engines["rules"].model_copy(update={"max_batch": 3})
    other = config.model_copy(update={"engines": {"rules": rules}})
    assert all(decide(store, other, stage, 0, frozen=False).reuse for stage in ALGORITHMS["nlac"].stages)


def test_a_changed_prompt_is_named(
    store: Store, make_config: Callable[..., Config], finished: Finished, tmp_path: Path
) -> None:
    finished(store, make_config())
    template = tmp_path / "evaluate.j2"
    template.write_text(
        "{% block system %}Optimal:{% endblock %}{% block user %}{{ action_text }}{% endblock %}"
    )
    role = {"engine": "rules", "structured": True, "template": str(template)}
    changed = make_config(roles={"evaluate": role})
    reasons = decide(store, changed, "critique", 0, frozen=False).reasons
    assert any(r.startswith("prompt: evaluate: ") for r in reasons)


def test_force_commits_a_new_attempt_and_equal_data_leaves_the_rest_valid(
    store: Store, make_config: Callable[..., Config], iterate: Iterate, finished: Finished
) -> None:
    config = make_config()
    finished(store, config)
    before = store.committed("trial", "bellman-targets", 0)
    forced = asyncio.run(run_stage(store, config, "bellman-targets", 0, force=True))
    assert not forced.reused
    assert forced.committed.path.name == f"{before.path.name}-2" and before.path.exists()
    entries = store.current("trial", 0).stages
    assert {s for s, e in entries.items() if e.stale} == {
        "cot-correction", "critic-sft", "critique", "refinement", "policy-distillation", "evaluation",
    }  # fmt: skip
    again = iterate(config, 0)
    assert reused(again) == list(ALGORITHMS["nlac"].stages)
    assert not any(e.stale for e in store.current("trial", 0).stages.values())


def test_recomputing_with_another_outcome_recomputes_what_lies_downstream(
    store: Store, make_config: Callable[..., Config], finished: Finished
) -> None:
    finished(store, make_config())
    other = make_config(replay={"transitions": 12})
    asyncio.run(run_stage(store, other, "bellman-targets", 0, frozen=False))
    decision = decide(store, other, "cot-correction", 0)
    assert not decision.reuse
    assert any(r.startswith("input: bellman-targets@00000.bellman_targets: ") for r in decision.reasons)


def test_a_changed_configuration_applies_to_uncommitted_stages_of_an_unfinished_iteration(
    store: Store, make_config: Callable[..., Config], iterate: Iterate
) -> None:
    first = make_config()
    begin_iteration(store, first, 0)
    asyncio.run(run_stage(store, first, "rollout", 0))
    later = make_config(rollout={"episodes": 2, "max_steps": 6}, replay={"transitions": 7})
    results = iterate(later)
    assert reused(results) == ["rollout"]
    assert results[0].committed.manifest.rows_in == 4
    assert results[1].committed.manifest.rows_in == 7


def test_damaged_input_is_reported_by_name_and_not_used(
    store: Store, make_config: Callable[..., Config], iterate: Iterate
) -> None:
    config = make_config()
    begin_iteration(store, config, 0)
    made = asyncio.run(run_stage(store, config, "rollout", 0)).committed
    path = made.path / "transitions.parquet"
    content = bytearray(path.read_bytes())
    content[100] ^= 1  # same size: only the digest tells
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"transitions\.parquet: its sha256 is not the manifest's"):
        asyncio.run(run_stage(store, config, "bellman-targets", 0))
    healed = asyncio.run(run_stage(store, config, "rollout", 0, force=True))
    assert healed.committed.path != made.path
    asyncio.run(run_stage(store, config, "bellman-targets", 0))


def test_a_broken_manifest_can_be_recomputed_by_force(
    store: Store, make_config: Callable[..., Config], iterate: Iterate
) -> None:
    config = make_config()
    begin_iteration(store, config, 0)
    made = asyncio.run(run_stage(store, config, "rollout", 0)).committed
    os.truncate(made.path / "manifest.json", 40)
    with pytest.raises(StoreError, match=r"manifest\.json: broken manifest"):
        asyncio.run(run_stage(store, config, "rollout", 0))
    assert not asyncio.run(run_stage(store, config, "rollout", 0, force=True)).reused
