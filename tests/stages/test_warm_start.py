"""The warm start: the stage that trains on demonstrations, and who begins from it."""

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from schemas.config import Config
from schemas.load import ConfigError
from storage.store import Store
from tasks.datasets.guess_number import demonstrations
from tasks.export.policy import find_policy
from tasks.pipeline.checks import check_config
from tasks.pipeline.decision import decide, resolve_inputs
from tasks.pipeline.registry import stages_of
from tasks.runtime.stage import StageFailed
from tests.support.iterations import Iterate

MakeConfig = Callable[..., Config]
WARM = {"batch_rows": 4, "micro_batch_rows": 4}


@pytest.fixture(scope="module")
def told() -> pl.DataFrame:
    return demonstrations(12, seed=0)


@pytest.fixture
def file(told: pl.DataFrame, tmp_path: Path) -> Path:
    told.head(2).extend(told.filter(role="evaluate").head(1)).write_parquet(tmp_path / "told.parquet")
    return tmp_path / "told.parquet"


def test_iteration_zero_begins_from_the_warm_start_and_everything_follows_from_it(
    make_config: MakeConfig, store: Store, iterate: Iterate, file: Path
) -> None:
    config = make_config(warm_start={"file": str(file), **WARM})
    check_config(config, store.root)
    assert stages_of(config, 0)[0] == "warm-start" and "warm-start" not in stages_of(config, 1)
    made = {r.committed.manifest.stage: r.committed for r in iterate(config)}
    warm = made["warm-start"].manifest.adapters["warm_start"]
    assert set(made["warm-start"].manifest.tables) == {"demonstrations", "training_rows", "training_steps"}
    rows = made["warm-start"].scan("training_rows").collect()
    assert rows["source_table"].to_list() == ["demonstrations"] * 3 and set(rows["role"]) == {"demonstration"}
    ids = made["warm-start"].scan("demonstrations").collect()["demonstration_id"]
    assert set(rows["source_id"]) == set(ids)
    for stage, use in (
        ("rollout", "policy"), ("bellman-targets", "policy"), ("bellman-targets", "target"),
        ("cot-correction", "target"), ("critic-sft", "start"), ("critic-sft", "target"),
    ):  # fmt: skip
        assert made[stage].manifest.fingerprint_inputs.models[use] == warm.digest, (stage, use)
    # The same demonstrations elsewhere are the same warm start; others are another one.
    moved = file.rename(file.with_name("moved.parquet"))
    assert decide(
        store, make_config(warm_start={"file": str(moved), **WARM}), "warm-start", 0, frozen=False
    ).reuse
    pl.read_parquet(moved).head(1).write_parquet(file)
    assert not decide(store, config, "warm-start", 0, frozen=False).reuse


def test_separate_parameters_evaluate_and_refine_with_the_warm_start(
    make_config: MakeConfig, store: Store, iterate: Iterate, file: Path
) -> None:
    config = make_config(warm_start={"file": str(file), **WARM}, parameters="separate")
    made = {r.committed.manifest.stage: r.committed for r in iterate(config)}
    warm = made["warm-start"].manifest.adapters["warm_start"].digest
    critique = made["critique"].manifest.fingerprint_inputs.models
    assert (critique["actor"], critique["refiner"]) == (warm, warm)
    assert made["policy-distillation"].manifest.fingerprint_inputs.models["start"] == warm


def test_react_evaluates_the_warm_start(
    make_config: MakeConfig, store: Store, iterate: Iterate, file: Path
) -> None:
    config = make_config(warm_start={"file": str(file), **WARM}, algorithm="react")
    warm, evaluated = (r.committed.manifest for r in iterate(config))
    assert evaluated.fingerprint_inputs.models["policy"] == warm.adapters["warm_start"].digest
    assert resolve_inputs(store, config, "evaluation", 1).adapters["policy"] is not None
    policy = find_policy(store, "trial")
    assert policy.adapter is not None and policy.adapter.version == warm.adapters["warm_start"].version


def test_rows_that_are_no_answer_of_their_role_are_kept_with_the_reason(
    make_config: MakeConfig, store: Store, iterate: Iterate, told: pl.DataFrame, tmp_path: Path
) -> None:
    spoilt = told.head(3).with_columns(answer=pl.Series(["[5]", "[50]", "five"]))
    evaluate = told.filter(role="evaluate").head(1).with_columns(optimal=pl.lit(None, pl.Boolean))
    (tmp_path / "f").mkdir()
    long = told.filter(role="evaluate").head(1).with_columns(answer=pl.lit("too low " * 20))
    spoilt.extend(evaluate).extend(long).write_parquet(tmp_path / "f" / "spoilt.parquet")
    config = make_config(
        warm_start={"file": str(tmp_path / "f" / "spoilt.parquet"), **WARM}, algorithm="react"
    )
    warm = iterate(config)[0].committed
    rows = warm.scan("demonstrations").select("status", "error").collect().rows()
    assert [status for status, _ in rows] == ["ok", *["unusable"] * 4]
    assert "'[50]' is no action of the environment" in rows[1][1]
    assert rows[3][1] == "optimal is empty; a demonstration of role evaluate needs it"
    assert "not in the format that roles.evaluate is sampled under; raise its line_chars" in rows[4][1]
    assert warm.manifest.tables["training_rows"].rows == 1

    spoilt.tail(4).write_parquet(tmp_path / "f" / "worse.parquet")
    worse = make_config(
        run="worse", warm_start={"file": str(tmp_path / "f" / "worse.parquet"), **WARM}, algorithm="react"
    )
    with pytest.raises(StageFailed, match=r"no demonstration can be trained on; the first: answer: '\[50\]'"):
        iterate(worse)


def test_a_file_that_is_none_is_refused_before_anything_runs(
    make_config: MakeConfig, store: Store, told: pl.DataFrame, tmp_path: Path
) -> None:
    path = tmp_path / "told.parquet"

    def refused(match: str) -> None:
        with pytest.raises(ConfigError, match=match):
            check_config(make_config(warm_start={"file": str(path)}), store.root)

    refused(r"warm_start.file: .*told.parquet: can't be read as Parquet")
    path.write_text("no parquet")
    refused("can't be read as Parquet")
    told.drop("answer").write_parquet(path)
    refused("column answer is missing")
    told.with_columns(reward=pl.lit("1")).write_parquet(path)
    refused("column reward is String, and must be Float64")


def test_a_warm_start_that_is_not_configured_says_what_to_do(make_config: MakeConfig, store: Store) -> None:
    with pytest.raises(StageFailed, match=r"warm_start\.file .* `nlac demonstrate FILE`"):
        resolve_inputs(store, make_config(), "warm-start", 0)
    with pytest.raises(StageFailed, match="iteration 0, not 1"):
        resolve_inputs(store, make_config(warm_start={"file": "x.parquet"}), "warm-start", 1)
