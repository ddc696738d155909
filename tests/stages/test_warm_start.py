"""The warm start: the stage that trains on demonstrations, and who begins from it."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from pydantic import ValidationError

from schemas.config import Config, EngineSection, Role
from schemas.load import ConfigError
from storage.store import Store
from tasks.datasets.guess_number import demonstrations
from tasks.engines.protocol import Adapter, Request, ScoreRequest, Scores
from tasks.engines.scripted import ScriptedEngine
from tasks.export.policy import find_policy
from tasks.pipeline.checks import check_config
from tasks.pipeline.decision import decide, resolve_inputs
from tasks.pipeline.registry import stages_of
from tasks.prompting.truncation import Prompt
from tasks.runtime.role_client import FROZEN, RoleClient
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


def test_training_stages_rehearse_the_roles_that_they_do_not_train(
    make_config: MakeConfig, store: Store, iterate: Iterate, file: Path
) -> None:
    shares = {"batch_rows": 8, "micro_batch_rows": 4, "rehearse_share": 0.125}
    config = make_config(
        warm_start={"file": str(file), **WARM}, critic=shares, policy=shares, anchor={"kl": 0.1}
    )
    check_config(config, store.root)
    made = {r.committed.manifest.stage: r.committed for r in iterate(config)}
    warm = made["warm-start"].manifest
    demonstrations = made["warm-start"].scan("demonstrations").collect()
    (evaluated,) = demonstrations.filter(role="evaluate")["demonstration_id"]
    for stage in ("critic-sft", "policy-distillation"):
        rows = made[stage].scan("training_rows").filter(pl.col("role") == "demonstration").collect()
        assert rows["source_id"].to_list() == [evaluated] and set(rows["source_table"]) == {"demonstrations"}
        steps = made[stage].scan("training_steps").collect()
        assert rows["uses"].to_list() == [steps.height] and (steps["demonstration_loss"] > 0).all()
        determined = made[stage].manifest.fingerprint_inputs
        assert determined.inputs["warm-start@00000.demonstrations"] == warm.tables["demonstrations"].digest
        assert {"bootstrap", "evaluate", "refine"} <= determined.prompts.keys()
        assert determined.config["roles.evaluate.max_tokens"] == config.roles.evaluate.max_tokens
        # the anchor is the warm start, by default
        assert determined.models["anchor"] == warm.adapters["warm_start"].digest
    assert made["critic-sft"].scan("training_steps").collect()["anchor_kl"][0] == 0.0
    to_base = make_config(warm_start={"file": str(file), **WARM}, anchor={"kl": 0.1, "to": "base"})
    assert resolve_inputs(store, to_base, "critic-sft", 0).adapters["anchor"] is None
    assert "anchor" not in resolve_inputs(store, make_config(), "critic-sft", 0).adapters


def test_a_frozen_role_is_played_by_the_warm_start_whatever_is_trained(
    make_config: MakeConfig, store: Store, iterate: Iterate, file: Path
) -> None:
    config = make_config(warm_start={"file": str(file), **WARM})
    made = {r.committed.manifest.stage: r.committed for r in iterate(config)}
    warm = made["warm-start"].manifest.adapters["warm_start"]
    for stage in ("bellman-targets", "cot-correction", "critique", "refinement"):
        assert made[stage].manifest.fingerprint_inputs.models["frozen"] == warm.digest
    assert "frozen" not in made["rollout"].manifest.fingerprint_inputs.models
    free, held = make_config().roles.model_dump(), make_config().roles.model_dump()
    for role in ("bootstrap", "evaluate"):
        free[role]["frozen"], held[role]["frozen"] = False, True
    trained = make_config(warm_start={"file": str(file), **WARM}, roles=free)
    assert "frozen" not in resolve_inputs(store, trained, "bellman-targets", 0).adapters
    assert resolve_inputs(store, make_config(roles=held), "bellman-targets", 0).adapters["frozen"] is None
    assert "frozen" not in resolve_inputs(store, make_config(), "bellman-targets", 0).adapters


def says_who(request: Request) -> str:
    """The version of the parameters that answer."""
    return request.adapter.version if request.adapter else "base"


def _score(request: ScoreRequest) -> Scores:
    return Scores(((-1.0 if request.adapter and request.adapter.version == "warm" else -2.0,),))


says_who.score = _score  # type: ignore[attr-defined]


def test_a_frozen_role_answers_and_scores_with_other_parameters_than_it_is_asked_to(tmp_path: Path) -> None:
    config = Config(roles={"evaluate": {"frozen": True}, "bootstrap": {"frozen": True}})
    adapters = {
        use: Adapter(version, tmp_path, version) for use, version in (("refiner", "critic"), (FROZEN, "warm"))
    }
    engine = ScriptedEngine(EngineSection(backend="scripted", rules="tests.stages.test_warm_start:says_who"))
    client = RoleClient(config, "critique", 0, adapters, tmp_path, engines={"local": engine})
    shown = Prompt(({"role": "user", "content": "?"},))

    async def asked(role: Role) -> tuple[str, str, float]:
        answer = await client.ask(role, shown, adapter="refiner", request_key="a")
        scores = await client.scores(role, shown.messages, ("x",), adapter="refiner", request_key="s")
        assert answer.generation and scores
        return answer.text, answer.generation.model_version, scores.segments[0][0]

    assert asyncio.run(asked("evaluate")) == asyncio.run(asked("bootstrap")) == ("warm", "warm", -1.0)
    assert asyncio.run(asked("refine")) == ("critic", "critic", -2.0)


def test_what_can_not_be_rehearsed_or_frozen_is_refused(
    make_config: MakeConfig, store: Store, iterate: Iterate, told: pl.DataFrame, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"critic\.rehearse_share: there is no warm start to rehearse"):
        check_config(make_config(critic={"rehearse_share": 0.25}), store.root)
    with pytest.raises(ConfigError, match=r"policy\.rehearse_share: with policy\.mix 0\.25 .* no row"):
        check_config(make_config(policy={"rehearse_share": 0.75}), store.root)
    with pytest.raises(ValidationError, match=r"predict\.frozen: this role is what is trained"):
        make_config(roles={"predict": {"engine": "rules", "frozen": True}})
    with pytest.raises(ValidationError, match=r"model\.frozen: the environment's model is never trained"):
        make_config(environment={"model": {"engine": "rules", "frozen": True}})
    path = tmp_path / "policy.parquet"
    told.filter(role="policy").head(2).write_parquet(path)
    config = make_config(warm_start={"file": str(path), **WARM}, critic={"rehearse_share": 0.25})
    with pytest.raises(
        StageFailed, match=r"rehearse_share: the warm start holds no usable demonstration of boot"
    ):
        iterate(config)


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
