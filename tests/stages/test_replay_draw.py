"""What replay draws from: iterations by their age, and transitions of other runs."""

import asyncio
from collections.abc import Callable

import polars as pl
import pytest
from pydantic import ValidationError

from schemas.config import Config
from storage.store import Committed, Store
from tasks.algorithms.nlac import NLAC
from tasks.engines.protocol import Request
from tasks.pipeline.decision import resolve_inputs
from tasks.pipeline.runner import run_stage
from tasks.runtime.lineage import Resolver
from tasks.runtime.stage import StageFailed
from tests.support.committed import commit_rows, table
from tests.support.iterations import Iterate
from tests.support.rows import episode, transitions
from tests.support.rules import number_game, role_of

MakeConfig = Callable[..., Config]


def falls_silent(request: Request) -> str:
    """The number game's player, whose backup writes nothing now and then."""
    silent = role_of(request) == "bootstrap" and request.sampling.seed % 2
    return "" if silent else number_game(request)


def commit_rollout(store: Store, config: Config, iteration: int) -> Committed:
    """Two episodes of two steps, as if played under this configuration."""
    episodes = [episode(n, iteration=iteration, run=config.run) for n in range(2)]
    return commit_rows(
        store,
        "rollout",
        iteration,
        {"episodes": episodes, "transitions": [t for e in episodes for t in transitions(e)]},
        run=config.run,
        config={"environment": config.environment.model_dump(mode="json")},
    )


def run(store: Store, config: Config, *stages: str) -> Committed:
    """Run stages of iteration 0; the last one."""

    async def work() -> Committed:
        return [(await run_stage(store, config, stage, 0)).committed for stage in stages][-1]

    return asyncio.run(work())


def test_the_draw_leaves_out_iterations_past_their_age_and_later_stages_do_not(
    store: Store, make_config: MakeConfig
) -> None:
    parts = [commit_rollout(store, make_config(), iteration) for iteration in range(5)]

    def replayed(max_age: int | None, *, drawing: bool) -> list[int]:
        config = make_config(replay={"max_age": max_age})
        resolver = Resolver(config, NLAC, 3, lambda stage, i: parts[i], lambda run: [])
        return [part.manifest.iteration for part in resolver.replay(drawing=drawing)]

    assert replayed(None, drawing=True) == [0, 1, 2, 3]
    assert replayed(0, drawing=True) == [3]
    assert replayed(1, drawing=True) == [2, 3]
    assert replayed(9, drawing=True) == [0, 1, 2, 3]
    # what an earlier iteration drew is trained on still
    assert replayed(0, drawing=False) == [0, 1, 2, 3]


def test_an_iteration_draws_from_itself_alone_and_goes_on_from_the_last(
    store: Store, make_config: MakeConfig, iterate: Iterate
) -> None:
    config = make_config(replay={"max_age": 0, "transitions": 30})
    iterate(config)
    second = {r.committed.manifest.stage: r.committed for r in iterate(config)}
    drawn = second["bellman-targets"].scan("replay_samples").collect()["transition_id"]
    assert drawn.str.starts_with("trial/00001/").all()
    mixed = second["critic-sft"].scan("training_rows").filter(pl.col("role") == "policy").collect()
    assert set(mixed["source_table"]) == {"refinements"}, "whose transitions are of iteration 0"


def test_transitions_of_other_runs_join_the_pool_under_their_own_ids(
    store: Store, make_config: MakeConfig
) -> None:
    other = make_config(run="other", seed=3, rollout={"episodes": 6})
    played = run(store, other, "rollout").scan("transitions").collect()
    config = make_config(replay={"from_runs": ["other"], "alpha": 0, "transitions": 60})
    own = run(store, config, "rollout").scan("transitions").collect()
    samples = run(store, config, "bellman-targets").scan("replay_samples").collect()
    assert set(samples["run"]) == {"trial"}
    pool = {*own["transition_id"], *played["transition_id"]}
    assert set(samples["transition_id"]) <= pool
    assert samples["probability"].to_list() == pytest.approx([1 / len(pool)] * 60)
    of_other = samples.filter(pl.col("transition_id").str.starts_with("other/"))
    assert 0 < of_other.height < 60
    # the later stages of the critic find them
    corrected = run(store, config, "cot-correction").scan("corrected_targets").collect()
    assert corrected["backup_logprobs"].null_count() == 60, "nothing reads log p_B"
    trained = run(store, config, "critic-sft")
    assert trained.manifest.tables["training_rows"].rows >= 60
    assert trained.manifest.tables["priorities"].rows == 0, "uniform replay needs none"
    assert "mean_priority" not in trained.manifest.metrics


def test_a_run_that_can_not_be_mixed_in_is_named_with_its_field(
    store: Store, make_config: MakeConfig
) -> None:
    commit_rollout(store, make_config(), 0)
    for name in ("elsewhere", "trial"):
        config = make_config(replay={"from_runs": [name]})
        with pytest.raises(StageFailed, match=rf"replay\.from_runs: no other run '{name}' with a committed"):
            resolve_inputs(store, config, "bellman-targets", 0)
    commit_rollout(store, make_config(run="shaped", environment={"reward": "game"}), 0)
    with pytest.raises(
        StageFailed, match=r"replay\.from_runs: run 'shaped' was played on another environment"
    ):
        resolve_inputs(store, make_config(replay={"from_runs": ["shaped"]}), "bellman-targets", 0)
    with pytest.raises(ValidationError, match="a run is named twice"):
        make_config(replay={"from_runs": ["a", "a"]})


def test_a_whole_iteration_over_two_runs_names_the_inputs_of_both(
    store: Store, make_config: MakeConfig, iterate: Iterate
) -> None:
    run(store, make_config(run="other", seed=3, rollout={"episodes": 6}), "rollout")
    config = make_config(replay={"from_runs": ["other"], "transitions": 40}, improvement={"states": 20})
    done = {r.committed.manifest.stage: r.committed for r in iterate(config)}
    digest = {
        name: store.committed(name, "rollout", 0).manifest.tables["transitions"].digest
        for name in ("trial", "other")
    }
    for stage in (
        "bellman-targets",
        "cot-correction",
        "critic-sft",
        "critique",
        "refinement",
        "policy-distillation",
    ):
        inputs = done[stage].manifest.fingerprint_inputs.inputs
        assert inputs["rollout@00000.transitions"] == digest["trial"], stage
        assert inputs["other/rollout@00000.transitions"] == digest["other"], stage
    improved = done["refinement"].scan("refinements").filter(pl.col("distil")).collect()
    assert improved["transition_id"].str.starts_with("other/").any()


def test_a_drawn_transition_whose_target_failed_has_a_priority_too(
    store: Store, make_config: MakeConfig
) -> None:
    config = make_config(rules="tests.stages.test_replay_draw:falls_silent", replay={"transitions": 40})
    failed = run(store, config, "rollout", "bellman-targets").scan("bellman_targets").collect()
    assert (failed["status"] == "backup_failed").any()
    found = run(store, config, "cot-correction", "critic-sft").scan("priorities").collect()
    assert (
        set(found["transition_id"]) == set(failed["transition_id"])
        and found["transition_id"].is_unique().all()
    )
    usable = set(failed.filter(status="ok")["transition_id"])
    by_status = (
        found.with_columns(usable=pl.col("transition_id").is_in(usable)).select("status", "usable").unique()
    )
    assert set(by_status.rows()) == {("ok", True), ("target_failed", False)}
    lost = found.filter(status="target_failed")
    assert set(lost["priority"]) == {0.5} and lost["critic_logprob"].is_null().all(), "drawn with 1"


def test_a_draw_by_priority_weighs_the_loss_of_its_row(
    store: Store, make_config: Callable[..., Config], iterate: Iterate
) -> None:
    config = make_config(replay={"transitions": 16, "alpha": 0.6, "beta": 0.4, "beta_until": 2})
    iterate(config)
    iterate(config)
    samples = table(store, "bellman-targets", "replay_samples", 1)
    first = table(store, "bellman-targets", "replay_samples", 0)
    pool: set[str] = set()
    ever: set[str] = set()
    for iteration, draw in enumerate((first, samples)):
        pool |= set(table(store, "rollout", "transitions", iteration)["transition_id"])
        ever |= set(draw["transition_id"])
        made = store.committed("trial", "bellman-targets", iteration)
        assert made and made.manifest.metrics["replay_ratio"] == pytest.approx(
            16 * (iteration + 1) / len(pool)
        )
        assert made.manifest.metrics["never_drawn_share"] == pytest.approx(1 - len(ever) / len(pool))
    candidates = sum(table(store, "rollout", "transitions", i).height for i in (0, 1))
    raw = (candidates * samples["probability"]) ** -0.7  # halfway to 1
    assert samples["weight"].to_list() == pytest.approx((raw / raw.max()).to_list())
    trained = table(store, "critic-sft", "training_rows", 1).filter(role="critic", stage="critic-sft")
    joined = trained.join(
        table(store, "bellman-targets", "bellman_targets", 1), left_on="source_id", right_on="target_id"
    ).join(samples, on="sample_id", suffix="_drawn")
    assert joined.height == trained.height == 16 and joined["weight"].n_unique() > 2
    assert joined["weight"].equals(joined["weight_drawn"])
