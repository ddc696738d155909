"""Training on imported conversations, with no environment, through all stages."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from schemas.config import Config
from schemas.load import PROJECT_ROOT, ConfigError
from storage.sql.views import connect
from storage.store import Store
from tasks.environments.logged import Logged
from tasks.logs.importing import import_log
from tasks.pipeline.checks import check_config
from tasks.pipeline.decision import decide
from tasks.pipeline.iterations import next_iteration
from tasks.pipeline.plan import plan
from tasks.pipeline.registry import stages_of
from tasks.runtime.stage import StageFailed
from tests.support.iterations import Iterate
from tests.support.logs import AIRLINE, conversation, write_json

STAGES = [
    "bellman-targets", "cot-correction", "critic-sft", "critique", "refinement", "policy-distillation", "evaluation",
]  # fmt: skip


@pytest.fixture
def offline(make_config: Callable[..., Config]) -> Callable[..., Config]:
    def make(**changes: Any) -> Config:
        free = {role: {"engine": "rules", "structured": False} for role in ("policy", "refine")}
        return make_config(
            rules="tests.support.logs:helpful",
            **{"environment": {"name": "logged", "options": {}}, "rollout": "none", "roles": free, **changes},
        )

    return make


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_json(tmp_path / "log.json", [conversation(n, reward=float(n % 2)) for n in range(8)])


def test_an_iteration_trains_from_imports_alone(
    offline: Callable[..., Config], store: Store, iterate: Iterate, log: Path
) -> None:
    config = offline(replay={"transitions": 20}, improvement={"rounds": 2})
    check_config(config, store.root)
    assert stages_of(config, 0) == STAGES == [row.stage for row in plan(config)]
    import_log(store, "trial", log, "openai-chat")
    made = {r.committed.manifest.stage: r.committed for r in iterate(config)}
    assert list(made) == STAGES
    targets = made["bellman-targets"].scan("bellman_targets").collect()
    assert (targets["status"] == "ok").all() and set(targets["terminal"]) == {True, False}
    refined = made["refinement"].scan("refinements").collect()
    parsed = [Logged().accepts(action) for action in refined["action"]]
    assert refined["valid"].to_list() == parsed and set(parsed) == {True, False}
    assert made["policy-distillation"].manifest.adapters.keys() == {"policy", "target"}
    (row,) = made["evaluation"].scan("evaluations").collect().iter_rows(named=True)
    assert (row["status"], row["episodes"], row["success_rate"]) == ("skipped", 0, None)
    assert "can't be played" in row["error"]
    assert set(made["critic-sft"].scan("training_rows").collect()["dropped_turns"]) == {0}
    lineage = connect(store).sql("select distinct acted_by, environment from lineage").fetchall()
    assert lineage == [("logged", "logged")]


def test_a_second_file_joins_from_its_iteration_on(
    offline: Callable[..., Config], store: Store, iterate: Iterate, log: Path, tmp_path: Path
) -> None:
    import_log(store, "trial", log, "openai-chat")
    import_log(
        store,
        "trial",
        write_json(tmp_path / "more.json", [conversation(n) for n in range(50, 60)]),
        "openai-chat",
    )
    config = offline(replay={"transitions": 8}, improvement={"states": 4})
    assert next_iteration(store, "trial") == 0
    drawn = [iterate(config)[0].committed.scan("replay_samples").collect()["transition_id"] for _ in range(2)]
    assert not drawn[0].str.contains("trial/00001/").any() and drawn[1].str.contains("trial/00001/").any()
    assert next_iteration(store, "trial") == 2


def test_imports_of_another_run_are_replayed_by_name(
    offline: Callable[..., Config], store: Store, iterate: Iterate, log: Path
) -> None:
    import_log(store, "log", log, "openai-chat")
    environment = {"name": "logged", "options": {"longest": 50}}  # which imports do not depend on
    config = offline(replay={"transitions": 10, "from_runs": ["log"]}, environment=environment)
    drawn = iterate(config)[0].committed.scan("replay_samples").collect()
    assert drawn["transition_id"].str.starts_with("log/00000/").all()


@pytest.mark.parametrize("algorithm", ["rft", "nlql"])
def test_other_algorithms_train_offline_too(
    offline: Callable[..., Config], store: Store, iterate: Iterate, log: Path, algorithm: str
) -> None:
    import_log(store, "trial", log, "openai-chat")
    made = {r.committed.manifest.stage: r.committed for r in iterate(offline(algorithm=algorithm))}
    assert "policy" in made["policy-distillation"].manifest.adapters
    if algorithm == "rft":
        rows = made["policy-distillation"].scan("training_rows").collect()
        assert rows.height == 10 and rows["source_id"].str.contains("/train/000000[1357]/").all()


def test_what_can_not_be_is_refused(offline: Callable[..., Config], store: Store, iterate: Iterate) -> None:
    with pytest.raises(
        ConfigError, match=r"rollout\.source: environment logged can't be played; set rollout to none"
    ):
        check_config(offline(rollout={"source": "environment"}), store.root)
    with pytest.raises(ConfigError, match="algorithm: react only evaluates"):
        check_config(offline(algorithm="react"), store.root)
    with pytest.raises(ConfigError, match="self_distillation plays episodes on"):
        check_config(offline(algorithm="self_distillation"), store.root)
    with pytest.raises(ValidationError, match=r"replay\.max_age: imported transitions don't age"):
        offline(replay={"max_age": 1})
    with pytest.raises(StageFailed, match="nlac import FILE --run trial"):
        iterate(offline())
    with pytest.raises(StageFailed, match="there is no stage rollout"):
        decide(store, offline(), "rollout", 0)


def test_imported_episodes_are_not_played_over_nor_mixed_with_others(
    make_config: Callable[..., Config],
    offline: Callable[..., Config],
    store: Store,
    iterate: Iterate,
    log: Path,
) -> None:
    made = import_log(store, "trial", log, "openai-chat").committed
    with pytest.raises(StageFailed, match="holds imported episodes, which playing would replace"):
        iterate(make_config())
    assert store.committed("trial", "rollout", 0) == made
    with pytest.raises(StageFailed, match="holds episodes of environment logged"):
        iterate(make_config(rollout="none"))


def test_sixty_real_conversations_train_critic_and_policy_within_a_small_context(
    offline: Callable[..., Config], store: Store, iterate: Iterate, byte_checkpoint: Path
) -> None:
    if not AIRLINE.exists():
        pytest.skip(f"no logged conversations at {AIRLINE}")
    import_log(store, "trial", AIRLINE, "openai-chat")
    # The model reads bytes, of which the policy that opens each conversation has more than fit.
    model = {"name": str(byte_checkpoint), "context_length": 2400}
    config = offline(replay={"transitions": 6}, model=model, improvement={"states": 4})
    made = {r.committed.manifest.stage: r.committed for r in iterate(config)}
    rows = made["critic-sft"].scan("training_rows").collect()
    assert (rows["status"] == "ok").all() and rows.height > 6
    assert (rows["prompt_tokens"] + rows["label_tokens"] <= 2400).all()
    assert (rows["dropped_chars"] > 1000).all() and rows["dropped_turns"].max() > 5
    assert rows["prompt_tokens"].max() > 2000  # no more is left out than has to be
    targets = made["bellman-targets"].scan("bellman_targets").collect()
    assert (targets["status"] == "ok").all()
    assert targets["generation"].struct.field("dropped_chars").max() > 10_000


def test_the_documented_queries_are_true(
    offline: Callable[..., Config], store: Store, iterate: Iterate, log: Path
) -> None:
    import_log(store, "trial", log, "openai-chat")
    import_log(
        store, "trial", write_json(log.parent / "more.json", [conversation(8), {"reward": 1}]), "openai-chat"
    )
    iterate(offline())
    queries = re.findall(r"```sql\n(.*?)```", (PROJECT_ROOT / "docs" / "logged.md").read_text(), re.DOTALL)
    with connect(store) as database:
        found = [database.execute(query).fetchall() for query in queries]
    imports, rejects, tools, passes, messages, shortened = found
    assert imports == [("trial", 0, 8, 24, 0.5, 0), ("trial", 1, 1, 3, 1.0, 0)]
    assert rejects == [("trial", "bad_messages", 1, "messages: Field required")]
    assert tools == [("get_order", 18, pytest.approx(10 / 18)), ("think", 9, pytest.approx(5 / 9))]
    # Task t1 succeeds in 4 of 4 trials, t0 in 1 of 5.
    assert passes == [(pytest.approx(0.6), pytest.approx(0.5), 2)]
    assert [row[1] for row in messages] == [m["role"] for m in conversation(0)["messages"]]
    assert sum(row[2] for row in shortened) > 0
