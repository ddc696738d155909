"""tau_bench through the real stages, with scripted roles; a scripted user, and one played as a model. Skips where the
package is absent."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from schemas.config import Config
from schemas.load import PROJECT_ROOT, ConfigError, load_config
from storage.store import Store
from storage.verify import verify
from tasks.algorithms import ALGORITHMS
from tasks.environments.tau_bench.package import INSTALL
from tasks.pipeline.checks import check_config
from tests.support.iterations import Iterate
from tests.support.tiny import make_tiny_checkpoint

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tau_bench") is None, reason=f"tau_bench is not installed ({INSTALL})"
)
SCRIPTED = {"domain": "retail", "user": "scripted", "patience": 1}


@pytest.fixture(scope="session")
def long_prompt_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tasks.environments.tau_bench import TauBench

    return make_tiny_checkpoint(tmp_path_factory.mktemp("service"), [TauBench().instructions])


@pytest.fixture
def serving(make_config: Callable[..., Config], long_prompt_model: Path) -> Callable[..., Config]:
    """A small run of the shop, or of the airline."""

    def make(environment: dict[str, Any], **changes: Any) -> Config:
        return make_config(
            rules="tests.support.service:service",
            model={"name": str(long_prompt_model), "context_length": 8192},
            engines={
                "rules": {"backend": "scripted", "rules": "tests.support.service:service"},
                "user": {"backend": "scripted", "rules": "tests.support.service:customer"},
            },
            # free to write what is no action
            roles={role: {"engine": "rules", "structured": False} for role in ("policy", "refine")},
            environment={"name": "tau_bench", **environment},
            rollout={"episodes": 6, "max_steps": 5},
            replay={"transitions": 8},
            **changes,
        )

    return make


def test_an_iteration_runs_with_a_scripted_user(
    serving: Callable[..., Config], store: Store, iterate: Iterate
) -> None:
    config = serving({"options": SCRIPTED})
    check_config(config, store.root)
    results = {r.committed.manifest.stage: r.committed for r in iterate(config)}
    assert list(results) == list(ALGORITHMS["nlac"].stages) and verify(store) == []

    steps = results["rollout"].scan("transitions").collect()
    ends = steps.filter(pl.col("done"))
    assert ends.height == 6 and (ends["database_reward"] == ends["game_reward"]).all()
    assert steps.filter(~pl.col("done"))["database_reward"].is_null().all()
    assert steps["outputs_reward"].is_null().all(), "no training task asks for outputs"
    assert (
        ends["next_observation"]
        .str.starts_with("###STOP###\nThe conversation is over. The database is")
        .all()
    )
    assert steps["speaker_generations"].is_null().all()
    refused = steps.filter(~pl.col("action_valid"))
    assert (
        set(refused["action"]) == {"well, now"}
        and refused["next_observation"].str.contains("not valid JSON").all()
    )

    refined = results["refinement"].scan("refinements").filter(pl.col("kind") == "refined").collect()
    assert {(bool(r["valid"]), "#W1" in r["action"]) for r in refined.iter_rows(named=True)} == {
        (True, True),
        (False, False),
    }, "an action that lacks an argument is not distilled"


def test_an_iteration_runs_with_a_model_as_the_user(
    serving: Callable[..., Config], store: Store, iterate: Iterate
) -> None:
    config = serving({"options": {"train_split": "dev"}, "model": {"engine": "user"}})
    check_config(config, store.root)
    results = {r.committed.manifest.stage: r.committed for r in iterate(config)}
    assert list(results) == list(ALGORITHMS["nlac"].stages)
    steps = results["rollout"].scan("transitions").sort("transition_id").collect()
    assert set(steps.filter(step=0)["observation"]) == {"Good day."}
    spoken = steps.filter(pl.col("action").str.contains('"respond"'))
    assert spoken["speaker_generations"].list.len().min() == 1
    refined = results["refinement"].scan("refinements").filter(pl.col("kind") == "refined").collect()
    assert not refined.filter(~pl.col("action").str.contains("#W1"))["valid"].any(), "told without a replay"


def test_a_user_who_fails_to_answer_ends_the_episode_with_a_status(
    serving: Callable[..., Config], store: Store, iterate: Iterate
) -> None:
    options = {"eval_split": "dev", "train_split": "train"}
    config = serving(
        {"options": options, "model": {"engine": "user"}},
        algorithm="react",
        evaluation={"episodes": 20},
        faults={"max_failed_share": 1.0},
    )
    (result,) = iterate(config)
    episodes = result.committed.scan("episodes").collect()
    failed = episodes.filter(status="speaker_error")
    assert set(failed["error"]) == {"environment.model: the line is dead"}
    from tasks.environments.tau_bench.package import load_domain

    named = sum("daiki" in task.instruction.lower() for task in load_domain("retail").tasks["dev"])
    assert failed.height == named > 0


def test_the_airline_is_evaluated_and_never_trained_on(
    serving: Callable[..., Config], store: Store, iterate: Iterate
) -> None:
    options = {**SCRIPTED, "domain": "airline"}
    with pytest.raises(
        ConfigError, match=r"tau_bench/airline has no tasks to train on .* set algorithm to react"
    ):
        check_config(serving({"options": options}), store.root)
    config = serving({"options": options}, algorithm="react")
    check_config(config, store.root)
    (result,) = iterate(config)
    assert result.committed.scan("evaluations").collect()["environment"].item() == "tau_bench/airline"


def test_a_user_played_by_nobody_is_refused(serving: Callable[..., Config], store: Store) -> None:
    with pytest.raises(ConfigError, match=r"environment\.model: tau_bench/retail needs an environment model"):
        check_config(serving({"options": {}}), store.root)


@pytest.mark.parametrize("name", ["cluster/qwen2.5-7b-tau-bench", "examples/tau_bench_smollm2"])
def test_the_shipped_configurations_differ_from_a_test_in_model_and_engines_alone(
    name: str, long_prompt_model: Path, store: Store
) -> None:
    content = load_config(PROJECT_ROOT / "configs" / f"{name}.yaml").model_dump()
    content["model"] |= {"name": str(long_prompt_model), "revision": None, "device": "cpu"}
    for engine in content["engines"]:
        content["engines"][engine] = {"backend": "scripted", "rules": "tests.support.service:service"}
    check_config(Config.model_validate(content), store.root)
