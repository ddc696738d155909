"""A whole iteration through the real stages."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from safetensors.numpy import load_file

from schemas.config import Config
from schemas.rows import TABLES
from storage.store import Store
from storage.verify import verify
from tasks.algorithms import ALGORITHMS
from tasks.pipeline.decision import decide
from tasks.pipeline.iterations import IterationFrozen, next_iteration, run_stages
from tasks.pipeline.registry import STAGES
from tasks.runtime.stage import StageFailed
from tests.support.committed import commit_rows, table
from tests.support.iterations import Finished, Iterate

UP_TO_CRITIC = ("rollout", "bellman-targets", "cot-correction", "critic-sft")


def test_two_iterations_write_every_table_and_go_on_from_one_another(
    store: Store, make_config: Callable[..., Config], finished: Finished
) -> None:
    finished(store, make_config(), 2)
    made = [store.committed("trial", stage, i) for i in (0, 1) for stage in ALGORITHMS["nlac"].stages]
    assert [one.manifest.iteration for one in made] == [0] * 8 + [1] * 8
    # Those of imports, of a warm start, of policy gradients, of a scalar critic.
    elsewhere = {"rejects", "demonstrations", "values", "advantages"}
    elsewhere |= {"sampled_actions", "td_targets", "action_values"}
    assert {t for one in made[:8] for t in one.manifest.tables} == set(TABLES) - elsewhere
    assert verify(store) == []
    # iteration 1 plays and trains with what iteration 0 left
    policy = store.committed("trial", "policy-distillation", 0).manifest.adapters["policy"]
    assert set(table(store, "rollout", "transitions")["policy_version"]) == {
        "rules:tests.support.rules:number_game"
    }
    now = store.committed("trial", "critic-sft", 1).manifest.fingerprint_inputs
    assert now.models["start"] == policy.digest
    assert "policy-distillation@00000/optimizer.pt" in now.inputs
    drawn = table(store, "bellman-targets", "replay_samples", 1)
    assert drawn["transition_id"].str.contains("trial/00000/").any()
    assert drawn["scored"].any() and not drawn["scored"].all()
    assert next_iteration(store, "trial") == 2


def test_every_row_joins_to_the_one_it_came_from(
    store: Store, make_config: Callable[..., Config], finished: Finished
) -> None:
    finished(store, make_config())
    transitions = table(store, "rollout", "transitions")
    samples = table(store, "bellman-targets", "replay_samples")
    targets = table(store, "bellman-targets", "bellman_targets")
    corrected = table(store, "cot-correction", "corrected_targets")
    critiques = table(store, "critique", "critiques")
    futures = table(store, "critique", "futures")
    refinements = table(store, "refinement", "refinements")
    distilled = table(store, "policy-distillation", "training_rows").filter(role="policy")
    for child, key, parent, parent_key in (
        (transitions, "episode_id", table(store, "rollout", "episodes"), "episode_id"),
        (samples, "transition_id", transitions, "transition_id"),
        (targets, "sample_id", samples, "sample_id"),
        (corrected, "target_id", targets, "target_id"),
        (critiques, "sample_id", samples, "sample_id"),
        (futures, "critique_id", critiques, "critique_id"),
        (refinements, "critique_id", critiques, "critique_id"),
        (distilled, "source_id", refinements.filter("distil"), "refinement_id"),
    ):
        assert child.height > 0
        assert child.join(parent, left_on=key, right_on=parent_key, how="anti").is_empty(), key
        assert parent[parent_key].is_unique().all()
    assert sorted(distilled["source_id"]) == sorted(refinements.filter("distil")["refinement_id"])


def test_targets_know_terminal_from_truncated(store: Store, make_config: Callable[..., Config]) -> None:
    config = make_config(rollout={"episodes": 12, "max_steps": 3}, replay={"transitions": 60})
    asyncio.run(run_stages(store, config, ("rollout", "bellman-targets")))
    transitions = table(store, "rollout", "transitions")
    last = transitions.filter(pl.col("step") == pl.col("step").max().over("episode_id"))
    assert last["done"].any() and last["truncated"].any()
    assert (last["done"] ^ last["truncated"]).all()
    drawn = table(store, "bellman-targets", "bellman_targets").join(
        transitions, on="transition_id", suffix="_t"
    )
    done, cut = drawn.filter("done"), drawn.filter("truncated")
    assert done.height and done["terminal"].all()
    assert done["next_action_text"].is_null().all() and done["next_future"].is_null().all()
    assert done["description"].str.len_chars().min() > 0  # written by the backup, from r and s' alone
    assert cut.height and not cut["terminal"].any()
    assert cut["next_future"].is_not_null().all()


def test_reward_is_what_the_configuration_chooses(store: Store, make_config: Callable[..., Config]) -> None:
    config = make_config(rollout={"episodes": 12, "max_steps": 30})
    asyncio.run(run_stages(store, config, ("rollout",)))
    episodes = table(store, "rollout", "episodes")
    assert (episodes["reward"] == episodes["success"].cast(float)).all()
    assert (episodes.filter(~pl.col("success"))["game_reward"] > 0).any()


def test_leaking_thoughts_are_rewritten_or_dropped_and_descriptions_never_change(
    store: Store, make_config: Callable[..., Config]
) -> None:
    config = make_config(replay={"transitions": 40})
    asyncio.run(run_stages(store, config, ("rollout", "bellman-targets", "cot-correction")))
    rows = table(store, "cot-correction", "corrected_targets").join(
        table(store, "bellman-targets", "bellman_targets"), on="target_id", suffix="_t"
    )
    assert set(rows["verdict"]) == {"clean", "rewritten", "thought_dropped"}
    assert (rows["description"] == rows["description_t"]).all()
    assert (rows["thought_before"] == rows["thought_t"]).all()
    for verdict, thought in (
        ("rewritten", "if a hint follows, it narrows the range"),
        ("thought_dropped", ""),
    ):
        assert set(rows.filter(verdict=verdict)["thought"]) == {thought}
    assert (rows.filter(pl.col("verdict") != "clean")["leak_before"] > 0).all()
    assert (rows["leak_after"] == 0).all()
    assert rows.filter(verdict="thought_dropped")["attempts"].unique().to_list() == [2]
    assert rows.filter(verdict="clean")["attempts"].unique().to_list() == [0]


@pytest.mark.slow
def test_priorities_are_the_bound_on_the_kl_or_say_that_they_are_not(
    make_config: Callable[..., Config], tmp_path: Path
) -> None:
    for rules, kind in (("number_game", "kl_bound"), ("unscored", "nll")):
        store, config = Store(tmp_path / rules), make_config(rules=f"tests.support.rules:{rules}")
        asyncio.run(run_stages(store, config, UP_TO_CRITIC))
        rows = table(store, "critic-sft", "priorities")
        assert set(rows["priority_kind"]) == {kind}
        if kind == "kl_bound":
            # The backup's rules give a quarter of a nat a byte; both sides are means over the critic's tokens.
            label = -0.25 * len(" a hint, then it is found")
            assert rows["backup_logprob"].to_list() == pytest.approx(
                [label / tokens for tokens in rows["description_tokens"]]
            )
            expected = (rows["backup_logprob"] - rows["critic_logprob"]).clip(lower_bound=0)
        else:
            assert rows["backup_logprob"].is_null().all()
            expected = -rows["critic_logprob"]
        assert rows["priority"].to_list() == pytest.approx(expected.to_list())
        assert (rows["critic_logprob"] < 0).all()


def test_the_target_moves_as_far_as_the_manifest_says(
    store: Store, make_config: Callable[..., Config], iterate: Iterate
) -> None:
    iterate(make_config(target={"tau": 0.25}))
    made = store.committed("trial", "critic-sft", 0)
    steps = made.manifest.metrics["steps"]
    assert made.manifest.metrics["target_moved"] == pytest.approx(1 - 0.75**steps)
    target, live = (load_file(made.path / f / "adapter_model.safetensors") for f in ("target", "adapter"))
    assert target.keys() == live.keys()
    assert any((target[name] != live[name]).any() for name in live)
    after = store.committed("trial", "policy-distillation", 0)
    assert after.manifest.metrics["target_moved"] > 0  # shared parameters: every step of both stages


def test_separate_adapters_follow_their_own_column_of_the_table(
    store: Store, make_config: Callable[..., Config], iterate: Iterate
) -> None:
    config = make_config(parameters="separate")
    iterate(config)
    iterate(config)

    def models(stage: str, iteration: int) -> dict[str, str]:
        return store.committed("trial", stage, iteration).manifest.fingerprint_inputs.models

    psi = {i: store.committed("trial", "critic-sft", i).manifest.adapters for i in (0, 1)}
    phi = {i: store.committed("trial", "policy-distillation", i).manifest.adapters for i in (0, 1)}
    assert set(phi[0]) == {"policy"}
    assert models("rollout", 1)["policy"] == models("bellman-targets", 1)["policy"] == phi[0]["policy"].digest
    assert models("bellman-targets", 1)["target"] == psi[0]["target"].digest
    assert models("critic-sft", 1)["start"] == psi[0]["critic"].digest
    assert models("critique", 1)["critic"] == psi[1]["critic"].digest
    assert models("critique", 1)["actor"] == phi[0]["policy"].digest
    assert models("critique", 1)["refiner"] == models("refinement", 1)["refiner"] == "base"
    assert models("policy-distillation", 1)["start"] == phi[0]["policy"].digest
    assert set(table(store, "critic-sft", "training_rows", 1)["role"]) == {"critic"}
    assert set(table(store, "policy-distillation", "training_rows", 1)["role"]) == {"policy"}


def test_shared_parameters_follow_theirs(
    store: Store, make_config: Callable[..., Config], finished: Finished
) -> None:
    finished(store, make_config(), 2)

    def models(stage: str, iteration: int) -> dict[str, str]:
        return store.committed("trial", stage, iteration).manifest.fingerprint_inputs.models

    theta = store.committed("trial", "policy-distillation", 0).manifest.adapters
    mid = store.committed("trial", "critic-sft", 1).manifest.adapters
    assert models("rollout", 1)["policy"] == models("critic-sft", 1)["start"] == theta["policy"].digest
    assert (
        models("bellman-targets", 1)["target"]
        == models("cot-correction", 1)["target"]
        == theta["target"].digest
    )
    assert models("critique", 1) | {"base": ""} == {
        "base": "", "actor": mid["critic"].digest, "critic": mid["critic"].digest, "refiner": mid["critic"].digest,
    }  # fmt: skip
    assert models("policy-distillation", 1)["start"] == mid["critic"].digest
    assert models("policy-distillation", 1)["target"] == mid["target"].digest
    assert set(table(store, "critic-sft", "training_rows", 1)["role"]) == {"critic", "policy"}
    assert set(table(store, "critic-sft", "training_rows", 0)["source_table"]) == {
        "corrected_targets",
        "transitions",
    }
    assert set(table(store, "critic-sft", "training_rows", 1)["source_table"]) == {
        "corrected_targets",
        "refinements",
    }


@pytest.mark.slow
def test_replay_never_sees_a_planted_eval_row(store: Store, make_config: Callable[..., Config]) -> None:
    config = make_config(replay={"transitions": 60})
    asyncio.run(run_stages(store, config, ("rollout",)))
    made = store.committed("trial", "rollout", 0)
    rows = [
        TABLES["transitions"].model_validate(r)
        for r in made.scan("transitions").collect().iter_rows(named=True)
    ]
    episodes = [
        TABLES["episodes"].model_validate(r) for r in made.scan("episodes").collect().iter_rows(named=True)
    ]
    planted = [
        r.model_copy(
            update={"split": "eval", "transition_id": f"planted/{n}", "episode_id": "planted", "step": n}
        )
        for n, r in enumerate(rows)
    ]
    commit_rows(
        store, "rollout", 0, {"episodes": episodes, "transitions": [*rows, *planted]},
        fingerprint_inputs=made.manifest.fingerprint_inputs, attempt=2,
    )  # fmt: skip
    asyncio.run(run_stages(store, config, UP_TO_CRITIC))
    assert table(store, "rollout", "transitions").height == 2 * len(rows)
    assert (
        not table(store, "bellman-targets", "replay_samples")["transition_id"].str.contains("planted").any()
    )
    assert not table(store, "critic-sft", "training_rows")["source_id"].str.contains("planted").any()


def test_the_same_seed_gives_the_same_rows_twice_and_another_one_others(
    make_config: Callable[..., Config], iterate: Iterate, finished: Finished, tmp_path: Path
) -> None:
    def digests(store: Store) -> dict[str, str]:
        made = [store.committed("trial", stage, 0) for stage in ALGORITHMS["nlac"].stages]
        return {
            f"{one.manifest.stage} {name}": entry.digest
            for one in made
            if one is not None
            for name, entry in (*one.manifest.tables.items(), *one.manifest.adapters.items())
        }

    first, again, other = (Store(tmp_path / name) for name in "abc")
    finished(first, make_config())
    iterate(make_config(), at=again)
    asyncio.run(run_stages(other, make_config(seed=1), ("rollout",)))
    assert digests(first) == digests(again)
    assert len(digests(other)) == 2
    assert all(digests(first)[name] != digest for name, digest in digests(other).items())


def test_a_model_that_answers_rubbish_gives_rows_with_a_status(
    store: Store, make_config: Callable[..., Config], iterate: Iterate, tmp_path: Path
) -> None:
    roles = {r: {"engine": "rules", "structured": False} for r in ("policy", "evaluate", "refine")}
    rubbish: dict[str, Any] = {"rules": "tests.support.rules:rubbish", "replay": {"transitions": 30}}
    with pytest.raises(StageFailed, match="no Bellman target is usable"):
        iterate(make_config(roles=roles, **rubbish))
    transitions = table(store, "rollout", "transitions")
    assert not transitions["action_valid"].any()
    targets = table(store, "bellman-targets", "bellman_targets")
    assert {"malformed", "backup_failed"} <= set(targets["status"]) and "ok" not in set(targets["status"])
    assert targets["error"].is_not_null().all()
    assert targets.filter(status="malformed")["malformed"].all()

    sane = {"backend": "scripted", "rules": "tests.support.rules:number_game"}
    config = make_config(roles={**roles, "bootstrap": {"engine": "sane"}}, engines={"sane": sane}, **rubbish)
    judged = Store(tmp_path / "judged")
    with pytest.raises(StageFailed, match="no critique is usable") as failed:
        iterate(config, at=judged)
    assert "nlac sql" in str(failed.value)
    critiques = table(judged, "critique", "critiques")
    assert "unreadable_verdict" in set(critiques["status"])
    assert critiques["optimal"].is_null().all()
    assert judged.committed("trial", "refinement", 0) is None
    rejected = judged.committed("trial", "critique", 0).manifest.tables["critiques"].rejected
    assert rejected == critiques.height


def test_nothing_valid_to_distil_fails_without_an_adapter(
    store: Store, make_config: Callable[..., Config], iterate: Iterate
) -> None:
    config = make_config(
        rules="tests.support.rules:refines_badly", roles={"refine": {"engine": "rules", "structured": False}}
    )
    with pytest.raises(StageFailed, match=r"nothing to train on: of \d+ refined actions \d+ \w+"):
        iterate(config)
    assert not list(store.root.glob("trial/policy-distillation/**/*.safetensors"))
    assert not list(store.root.glob("trial/.staging/*"))


def test_stages_list_every_table_they_declare() -> None:
    of_imports = {"rejects"}
    assert {m.TABLE for s in STAGES.values() for m in s.writes} == set(TABLES) - of_imports


def test_a_stage_alone_needs_its_inputs_and_says_which(
    store: Store, make_config: Callable[..., Config]
) -> None:
    with pytest.raises(
        StageFailed, match=r"needs rollout of iteration 0.*prefect deployment run nlac/rollout"
    ):
        decide(store, make_config(), "bellman-targets", 0)


def test_a_finished_iteration_keeps_its_configuration(
    store: Store, make_config: Callable[..., Config], iterate: Iterate, finished: Finished
) -> None:
    finished(store, make_config())
    with pytest.raises(IterationFrozen, match="applies from the next iteration"):
        iterate(make_config(replay={"transitions": 11}), 0)
    changed = iterate(make_config(replay={"transitions": 11}))
    assert changed[0].committed.manifest.iteration == 1
    assert table(store, "bellman-targets", "replay_samples", 1).height == 11
