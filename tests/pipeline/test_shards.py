"""Stages in shards: the same tables as without, each shard resumed and reused by itself."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from schemas.config import Config
from schemas.manifest import FingerprintInputs
from schemas.shards import Shard
from storage import objects
from storage.garbage import remove_garbage
from storage.mirror import ABANDONED
from storage.shards import committed_shards
from storage.store import Committed, Store
from storage.verify import survey, verify
from tasks.chat.messages import RequestError
from tasks.engines.protocol import Request
from tasks.pipeline.commit import StageRun
from tasks.pipeline.decision import decide
from tasks.pipeline.iterations import begin_iteration, run_stages
from tasks.pipeline.registry import STAGES
from tasks.pipeline.runner import run_stage
from tasks.pipeline.shards import carry_out_shard, shards_of
from tasks.runtime.dealing import deal
from tasks.runtime.stage import StageInterrupted
from tests.support.iterations import dies
from tests.support.rules import number_game
from tests.support.s3_server import Fault, Host, S3Server

MakeConfig = Callable[..., Config]


def in_shards(config: Config, count: int) -> Config:
    """The same, its items dealt out."""
    return config.model_copy(update={"pools": config.pools.model_copy(update={"shards": count})})


def run(store: Store, config: Config, stage: str, *, force: bool = False) -> Committed:
    return asyncio.run(run_stage(store, config, stage, 0, force=force)).committed


def run_shard(store: Store, config: Config, stage: str, shard: str) -> None:
    decision = decide(store, config, stage, 0)
    asyncio.run(carry_out_shard(store, config, decision, Shard.parse(shard)))


def digests(committed: Committed) -> dict[str, str]:
    return {name: entry.digest for name, entry in committed.manifest.tables.items()}


def leftovers(store: Store) -> list[Path]:
    """What shards leave until their stage is committed."""
    home = store.run_dir("trial")
    return [
        *home.glob(".shards/*/*"),
        *home.glob(".requests/*"),
        *home.glob(".logs/*"),
        *home.glob(".staging/*"),
    ]


CASES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "nlac": (
        {"backup": {"draws": 2}, "improvement": {"max_rows_per_action": 1}},
        ("rollout", "bellman-targets", "cot-correction", "critic-sft", "critique", "refinement"),
    ),
    "self_distillation": (
        {"algorithm": "self_distillation"}, ("rollout", "replay-draw", "critique", "refinement"),
    ),
    "sac": (
        {"algorithm": "sac", "improvement": {"actions": 2}}, ("rollout", "replay-draw", "action-samples"),
    ),
    "react": ({"algorithm": "react", "evaluation": {"repeats": 2, "validation_episodes": 2}}, ("evaluation",)),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_sharded_stage_commits_what_it_commits_without_shards(
    store: Store, make_config: MakeConfig, case: str
) -> None:
    changes, stages = CASES[case]
    config = make_config(**changes)
    asyncio.run(run_stages(store, config, stages))
    sharded = [name for name in stages if STAGES[name].item is not None]
    for stage in sharded:
        plain = store.committed("trial", stage, 0)
        assert plain is not None
        for count in (3, 30) if stage == sharded[0] else (3,):  # of 30 most have nothing to do
            made = run(store, in_shards(config, count), stage, force=True)
            assert digests(made) == digests(plain), stage
            for field in ("fingerprint", "metrics", "tokens", "rows_in"):
                assert getattr(made.manifest, field) == getattr(plain.manifest, field), (stage, field)
            texts = {role: cost.texts for role, cost in plain.manifest.roles.items()}
            assert {role: cost.texts for role, cost in made.manifest.roles.items()} == texts
    assert leftovers(store) == [] and verify(store) == []


def test_targets_are_dealt_out_by_how_many_texts_they_take_and_how_far_their_episodes_have_come(
    store: Store, make_config: MakeConfig
) -> None:
    """docs/shards.md has the rule: 1 + 2 draws texts, 1 at an episode's end, each dearer by a tenth for every step."""
    config = make_config(backup={"draws": 2})
    steps = run(store, config, "rollout").scan("transitions").collect()
    drawn = run(store, config, "bellman-targets").scan("replay_samples").sort("draw").collect()
    at = {row["transition_id"]: row for row in steps.iter_rows(named=True)}
    places = [at[transition_id] for transition_id in drawn["transition_id"]]
    costs = [(1 if place["done"] else 5) * (1 + place["step"] / 10) for place in places]
    assert len(set(costs)) > 2
    run_shard(store, in_shards(config, 2), "bellman-targets", "1/2")
    (table,) = store.run_dir("trial").glob(".shards/bellman-targets-*/0001-of-0002/items.parquet")
    items = pl.read_parquet(table)["item"].to_list()
    assert sorted(items) == deal(costs, 2)[0] != deal([1.0] * len(costs), 2)[0]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many requests the player `counted` has begun."""
    notes = tmp_path / "asked"
    monkeypatch.setenv("NLAC_TEST_COUNT", str(notes))
    return lambda: len(notes.read_text().splitlines()) if notes.exists() else 0


def test_a_killed_shard_goes_on_from_the_requests_that_were_answered_and_costs_no_other_shard(
    store: Store, make_config: MakeConfig, asked: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = in_shards(make_config("tests.support.rules:counted"), 2)
    run_shard(store, config, "rollout", "1/2")
    first = asked()
    monkeypatch.setenv("NLAC_TEST_DIE_AT", str(first + 3))
    with dies():
        run_shard(store, config, "rollout", "2/2")
    assert len(list(store.run_dir("trial").glob(".shards/*/*"))) == 1
    monkeypatch.delenv("NLAC_TEST_DIE_AT")
    begun = asked()
    made = run(store, config, "rollout")
    transitions = made.scan("transitions").collect().height
    assert asked() == transitions + 1, "the request that was never answered is asked twice, and no other"
    assert first < begun == first + 3 < transitions
    assert leftovers(store) == []


def test_missing_and_damaged_shards_are_named_and_computed_again_from_their_requests(
    store: Store, make_config: MakeConfig, asked: Callable[[], int]
) -> None:
    config = in_shards(make_config("tests.support.rules:counted"), 3)
    plain = run(store, config.model_copy(update={"run": "plain", "pools": make_config().pools}), "rollout")
    before = asked()
    for shard in Shard.all(3):
        run_shard(store, config, "rollout", str(shard))
    whole = asked()
    (home,) = store.run_dir("trial").glob(".shards/*")
    table = home / "0002-of-0003" / "transitions.parquet"
    table.write_bytes(table.read_bytes()[:-9] + b"different")
    assert [fault.message.partition(":")[0] for fault in verify(store)] == [str(table)]
    (home / "0003-of-0003" / "manifest.json").unlink()
    made = run(store, config, "rollout")
    assert asked() == whole == 2 * before, "nothing was asked again"
    said = (made.path / "stage.log").read_text()
    assert (
        f"{table}: its size or sha256 is not that" in said and "0003-of-0003/manifest.json: missing" in said
    )
    rows, same = (one.scan("transitions").collect().drop("run") for one in (made, plain))
    assert rows["action"].equals(same["action"]) and leftovers(store) == []


def test_shards_of_another_count_are_left_alone_until_the_stage_is_committed(
    store: Store, make_config: MakeConfig
) -> None:
    config = make_config()
    run_shard(store, in_shards(config, 3), "rollout", "1/3")
    run_shard(store, in_shards(config, 2), "rollout", "2/2")
    made = run(store, in_shards(config, 2), "rollout")
    assert leftovers(store) == []
    assert digests(run(store, config, "rollout", force=True)) == digests(made)


WEAK: set[int] = set()


def weak(request: Request) -> str:
    """A player whose requests fail where their seeds leave a remainder of WEAK when divided by 4."""
    if request.sampling.seed % 4 in WEAK:
        raise RequestError("weak today")
    return number_game(request)


def test_an_outage_commits_neither_its_shard_nor_the_stage_that_has_too_much_of_it_in_all(
    store: Store, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config("tests.pipeline.test_shards:weak", rollout={"episodes": 24, "max_steps": 3})
    monkeypatch.setattr("tests.pipeline.test_shards.WEAK", {0, 1, 2, 3})
    with pytest.raises(StageInterrupted, match="rollout, shard 1/2: an engine"):
        run(store, in_shards(config, 2), "rollout")
    assert not list(store.run_dir("trial").glob(".shards/*/*"))
    monkeypatch.setattr("tests.pipeline.test_shards.WEAK", {0})
    with pytest.raises(StageInterrupted, match="rollout: an engine"):
        run(store, in_shards(config, 24), "rollout")  # of a shard's rows one fails at most
    left = len(list(store.run_dir("trial").glob(".shards/*/*")))
    assert 0 < left < 24, "those with faults are gone"
    monkeypatch.setattr("tests.pipeline.test_shards.WEAK", set())
    made = run(store, in_shards(config, 24), "rollout")
    assert made.manifest.tables["episodes"].rejected == 0 and leftovers(store) == []


def test_what_shards_of_committed_stages_left_is_garbage(store: Store, make_config: MakeConfig) -> None:
    config = make_config()
    run_shard(store, in_shards(config, 2), "rollout", "1/2")
    assert remove_garbage(store) == [], "the stage is not committed"
    (home,) = store.run_dir("trial").glob(".shards/*")
    kept = home.with_name("kept")
    home.rename(kept)
    run(store, config, "rollout")
    kept.rename(home)
    assert any(str(home) in line for line in survey(store).unreferenced)
    assert {found.kind for found in remove_garbage(store)} == {"shards", "journal"}
    assert leftovers(store) == []


def test_hosts_that_share_a_bucket_alone_share_a_stage_and_any_of_them_merges_it(
    host: Host, s3: S3Server, store: Store, make_config: MakeConfig, asked: Callable[[], int]
) -> None:
    config = make_config("tests.support.rules:counted")
    plain = run(store, config, "rollout")
    before, config, hosts = asked(), in_shards(config, 2), [host("first"), host("second")]
    begin_iteration(hosts[0], config, 0)
    for number, one in enumerate(hosts, 1):
        run_shard(one, config, "rollout", f"{number}/2")
    assert asked() == 2 * before
    for uploaded in s3.objects.values():
        uploaded.modified -= 2 * ABANDONED
    assert len(committed_shards(hosts[0], plain.manifest.fingerprint_inputs, 2)) == 2
    assert verify(hosts[0]) == [] and survey(hosts[0]).unreferenced == [] and remove_garbage(hosts[0]) == []
    kept = dict(s3.objects)
    for one in hosts:
        s3.objects.clear()
        s3.objects.update(kept)
        made = run(one, config, "rollout")
        assert digests(made) == digests(plain) and made.manifest.metrics == plain.manifest.metrics
        assert (made.path / "stage.log").read_text().count("items in") == 3, (
            "of both shards, and of the merge"
        )
        assert not [key for key in s3.objects if ".shards" in key]
        assert verify(one) == [] and list(one.run_dir("trial").glob(".shards/*")) == []
    assert asked() == 2 * before, "a merge asks nothing"
    s3.objects.update({key: one for key, one in kept.items() if ".shards" in key})
    assert "shards" in {found.kind for found in remove_garbage(hosts[0])}
    assert not [key for key in s3.objects if ".shards" in key] and leftovers(hosts[0]) == []


def test_a_shard_in_a_bucket_is_there_as_a_whole_or_computed_again(
    host: Host, s3: S3Server, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    monkeypatch.setattr(objects, "RETRIES", 0)
    config, first, second = in_shards(make_config(), 2), host("first"), host("second")
    run_shard(first, config, "rollout", "1/2")
    s3.faults.append(Fault("503", "PUT", "0002-of-0002/manifest.json", times=1000))
    with pytest.raises(StageInterrupted, match=r"s3://.*0002-of-0002/manifest\.json: .*SlowDown"):
        run_shard(first, config, "rollout", "2/2")
    s3.faults.clear()
    decision = decide(second, config, "rollout", 0)
    shards = shards_of(second, config, decision)
    assert shards is not None and [str(shard) for shard in shards.missing()] == ["2/2"]
    run_shard(second, config, "rollout", "2/2")
    (key,) = (key for key in s3.objects if key.endswith("transitions.parquet") and "0002-of" in key)
    s3.objects[key].content = s3.objects[key].content[:-9] + b"different"
    (fault,) = verify(second)
    assert f"s3://bucket/{key}: its size or sha256 is not that" in fault.message
    assert digests(run(first, config, "rollout")) == digests(run(store, make_config(), "rollout"))
    assert verify(first) == [] and not [key for key in s3.objects if ".shards" in key]


def test_a_stage_took_the_time_in_which_any_of_its_shards_was_computed() -> None:
    inputs = FingerprintInputs(
        stage="rollout", run="trial", iteration=0, code_version=1, config={}, prompts={}, models={}, inputs={}
    )
    begun = StageRun(inputs, "0" * 12, 1)
    spans = [(-100, 10), (-95, 10), (-94, 2), (-50, 10)]  # 15 seconds, then 10
    earlier = tuple((begun.started + timedelta(seconds=ago), float(length)) for ago, length in spans)
    assert replace(begun, earlier=earlier).seconds == pytest.approx(25 + begun.seconds, abs=1)
