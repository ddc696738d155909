"""The baselines that are algorithms of their own: react, self_distillation and nlql, through the real stages."""

import math
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from schemas.config import Config
from schemas.load import PROJECT_ROOT, ConfigError, load_config
from storage.sql.views import connect
from storage.store import Committed, Store
from tasks.algorithms import ALGORITHMS
from tasks.environments.frozen_lake.word_model import make_word_model
from tasks.export.policy import ExportError, find_policy
from tasks.pipeline.checks import check_config
from tasks.pipeline.decision import decide, resolve_inputs
from tasks.pipeline.plan import plan
from tasks.pipeline.registry import STAGES
from tasks.runtime.stage import StageFailed
from tests.support.baseline_rules import LOG_NO, log_yes
from tests.support.iterations import Iterate

MakeConfig = Callable[..., Config]


def run_twice(config: Config, store: Store, iterate: Iterate) -> list[dict[str, Committed]]:
    """Two iterations; what holds of every algorithm is checked here."""
    check_config(config, store.root)
    iterations = []
    for number in range(2):
        made = {r.committed.manifest.stage: r.committed for r in iterate(config)}
        assert tuple(made) == ALGORITHMS[config.algorithm].stages
        assert [row.stage for row in plan(config)] == list(made)
        for stage, committed in made.items():
            assert set(committed.manifest.tables) == {table.TABLE for table in STAGES[stage].writes}
            assert decide(store, config, stage, number).reuse
        iterations.append(made)
    return iterations


def distilled(store: Store) -> list[tuple[object, ...]]:
    query = "select refinement_id, futures, critic_version, distilled_into from lineage order by 1"
    return connect(store).sql(query).fetchall()


def test_react_evaluates_the_untrained_model_and_trains_nothing(
    make_config: MakeConfig, store: Store, iterate: Iterate
) -> None:
    for made in run_twice(make_config(algorithm="react"), store, iterate):
        manifest = made["evaluation"].manifest
        assert manifest.fingerprint_inputs.models["policy"] == "base"
        assert manifest.adapters == {} and manifest.tables["evaluations"].rows == 1
    policy = find_policy(store, "trial", 1)
    assert policy.adapter is None and policy.config.algorithm == "react"
    with pytest.raises(ExportError, match="iteration 7"):
        find_policy(store, "trial", 7)


def told(rows: list[dict[str, object]]) -> str:
    """The rest of a recorded episode, as a future tells it."""
    said = []
    for row in rows:
        said += [f"Agent: {row['action']}", f"Environment: {' '.join(str(row['next_observation']).split())}"]
    last = rows[-1]
    ending = "The episode was cut off before its end" if last["truncated"] else "The task failed"
    ending = "The task succeeded" if last["success"] else ending
    return " ".join([*said[1:], f"{ending}; reward {int(bool(last['success']))}."])


@pytest.mark.parametrize("action", ["fresh", "replayed"])
def test_futures_of_self_distillation_are_what_the_environment_does_next(
    make_config: MakeConfig, store: Store, iterate: Iterate, action: str
) -> None:
    config = make_config(
        "tests.support.baseline_rules:counting",
        algorithm="self_distillation",
        rollout={"episodes": 8},
        improvement={"futures": 2, "action": action},
    )
    made = run_twice(config, store, iterate)
    played = pl.concat([m["rollout"].scan("transitions") for m in made]).sort("transition_id").collect()
    # The policy counts up, so from any step on the very episode that was recorded is played again.
    rest = {
        row["transition_id"]: told(
            played.filter(pl.col("episode_id") == row["episode_id"], pl.col("step") >= row["step"]).to_dicts()
        )
        for row in played.iter_rows(named=True)
    }
    endings = set()
    for iteration in made:
        critiques = iteration["critique"].scan("critiques").collect()
        futures = iteration["critique"].scan("futures").collect()
        assert futures.height == 2 * critiques.height > 0
        assert set(futures["source"]) == {"rollout"} and futures["generation"].is_null().all()
        at = dict(zip(critiques["critique_id"], critiques["transition_id"], strict=True))
        for future in futures.iter_rows(named=True):
            assert future["description"] == rest[at[future["critique_id"]]]
            endings.add(future["description"].rpartition(" ")[0].rpartition(";")[0].rpartition("The ")[2])
        assert (
            not iteration["policy-distillation"].scan("training_rows").filter(role="critic").collect().height
        )
    assert endings == {"task succeeded", "episode was cut off before its end"}
    assert any(row[1] and row[2] is None and row[3] for row in distilled(store))


def test_self_distillation_trains_and_plays_its_own_policy(
    store: Store, iterate: Iterate, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = load_config(PROJECT_ROOT / "configs" / "proofs" / "frozen_lake.yaml").model_dump()
    content["model"]["name"] = str(make_word_model(tmp_path_factory.mktemp("words"), seed=0))
    content["environment"]["options"]["maps"] = 4
    content["rollout"] |= {"episodes": 6, "first_episodes": 9, "uniform_until": 1}
    content["replay"]["transitions"] = 24
    content["improvement"] |= {"states": 6, "futures": 2, "rounds": 2, "from_iteration": 0}
    content["evaluation"] |= {"episodes": 3, "every": 1}
    first, second = run_twice(
        Config.model_validate({**content, "algorithm": "self_distillation"}), store, iterate
    )
    drawn = second["replay-draw"].scan("replay_samples").collect()
    candidates = sum(m["rollout"].manifest.tables["transitions"].rows for m in (first, second))
    assert drawn.height == 24 and drawn["probability"].to_list() == pytest.approx([1 / candidates] * 24)

    theta = first["policy-distillation"].manifest.adapters
    assert list(theta) == ["policy"], "there is no critic whose target could follow"
    assert set(first["critique"].scan("futures").collect()["policy_version"]) == {"uniform"}
    for stage in ("critique", "refinement"):
        assert set(second[stage].scan("futures").collect()["policy_version"]) == {theta["policy"].version}
    models = second["critique"].manifest.fingerprint_inputs.models
    assert {models[use] for use in ("actor", "policy", "refiner")} == {theta["policy"].digest}
    assert second["policy-distillation"].manifest.fingerprint_inputs.models["start"] == theta["policy"].digest
    assert {f.path for f in second["policy-distillation"].manifest.files} >= {"optimizer.pt"}
    optimizer = "policy-distillation@00000/optimizer.pt"
    assert optimizer in second["policy-distillation"].manifest.fingerprint_inputs.inputs


def test_nlql_distils_the_action_that_is_most_probably_optimal(
    make_config: MakeConfig, store: Store, iterate: Iterate
) -> None:
    config = make_config(
        "tests.support.baseline_rules:valuing", algorithm="nlql", improvement={"actions": 5, "futures": 2}
    )
    first, second = run_twice(config, store, iterate)
    first_of_equals = []
    for made in (first, second):
        critiques = made["critique"].scan("critiques").collect()
        chosen = made["refinement"].scan("refinements").collect()
        assert critiques.height == 5 * chosen.height
        assert made["critique"].manifest.tables["futures"].rows == 2 * critiques.height
        assert made["refinement"].manifest.tokens == 0, "nothing is written in this stage"
        for row in critiques.iter_rows(named=True):
            guess = int(row["action"].strip("[]"))
            probability = 1 / (1 + math.exp(LOG_NO - log_yes(guess)))
            assert row["yes_probability"] == pytest.approx(probability)
            assert row["optimal"] is (probability > 0.5) and row["critique"] == ""
        for row in chosen.iter_rows(named=True):
            tried = critiques.filter(sample_id=row["sample_id"]).sort("critique_id").to_dicts()
            nearest = min(abs(int(c["action"].strip("[]")) - 10) for c in tried)
            equals = [c for c in tried if abs(int(c["action"].strip("[]")) - 10) == nearest]
            [best] = [c for c in equals if c["critique_id"] == row["critique_id"]]
            assert row["action"] == best["action"] and row["distil_reason"] in ("chosen", "failed")
            first_of_equals += [best is equals[0]] if len(equals) > 1 else []
            assert (row["kind"], row["round"], row["changed"]) == ("chosen", 1, False)
            assert row["thought"] == best["thought"] == "halves are quick" and row["verdict"] is None
            assert row["distil"] is row["valid"] is (row["status"] == "ok")
            assert row["generation"] == best["action_generation"]
        assert chosen["valid"].any()
    assert first_of_equals and not all(first_of_equals), "one of equals is drawn"
    # The parameters are those of nlac: the new critic foresees, acts and judges, and distillation starts from it.
    critic = second["critic-sft"].manifest.adapters["critic"].digest
    models = second["critique"].manifest.fingerprint_inputs.models
    assert {models[use] for use in ("actor", "critic", "refiner")} == {critic}
    assert second["policy-distillation"].manifest.fingerprint_inputs.models["start"] == critic
    assert {"policy", "target"} == set(second["policy-distillation"].manifest.adapters)
    trained = [m["policy-distillation"].manifest.rows_in for m in (first, second)]
    assert len(distilled(store)) == sum(trained) > 0


def test_the_critics_share_of_batches_is_none_without_a_critic(make_config: MakeConfig) -> None:
    for algorithm in ALGORITHMS:
        share = 0.25 if algorithm in ("nlac", "nlql", "sac") else 0.0
        assert ALGORITHMS[algorithm].mix(make_config(algorithm=algorithm), "policy") == share


def test_a_run_holds_one_algorithm(make_config: MakeConfig, store: Store, iterate: Iterate) -> None:
    config = make_config(algorithm="react")
    iterate(config)
    for number in (0, 1):
        with pytest.raises(StageFailed, match="run 'trial' holds iterations of algorithm react"):
            iterate(make_config(algorithm="rft"), number)
    with pytest.raises(StageFailed, match="critique is no stage of algorithm react"):
        resolve_inputs(store, config, "critique", 0)


def test_what_an_algorithm_lacks_is_refused(make_config: MakeConfig, tmp_path: Path) -> None:
    unscored = make_config("tests.support.rules:unscored", algorithm="nlql")
    with pytest.raises(ConfigError, match=r"roles\.evaluate\.engine: .* 'rules' does not score"):
        check_config(unscored, tmp_path / "data")
    replayed = make_config(algorithm="nlql", improvement={"action": "replayed"})
    with pytest.raises(ConfigError, match=r"improvement\.action: algorithm nlql"):
        check_config(replayed, tmp_path / "data")
    alone = make_config(algorithm="self_distillation", improvement={"from_iteration": 1})
    with pytest.raises(ConfigError, match=r"improvement\.from_iteration: .* \(nlac, nlql, sac\)"):
        check_config(alone, tmp_path / "data")
    with pytest.raises(ConfigError, match=r"algorithm: 'sarsa' is unknown; use one of nlac, nlql"):
        check_config(make_config(algorithm="sarsa"), tmp_path / "data")
    against_a_model = {
        "name": "textarena", "options": {"game": "TicTacToe-v0"}, "model": {"engine": "rules", "structured": False}
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"algorithm: self_distillation .* is not replayable"):
        check_config(
            make_config(algorithm="self_distillation", environment=against_a_model), tmp_path / "data"
        )
