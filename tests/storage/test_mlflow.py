"""The MLflow bridge against a real SQLite store."""

import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.tracing.client import TracingClient

from schemas.config import Config
from schemas.load import PROJECT_ROOT
from schemas.rows import Row
from storage.mlflow.bridge import Bridge
from storage.store import Committed, Store
from tests.support.committed import commit_rows
from tests.support.rows import episode, evaluation, training_steps, transitions

CONFIG = Config(run="trial")


@pytest.fixture
def bridge(store: Store) -> Bridge:
    return Bridge(store.root)


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow takes seconds to make its tables; tests copy these."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def client(bridge: Bridge, empty_database: Path) -> MlflowClient:
    bridge.home.mkdir(parents=True)
    shutil.copy(empty_database, bridge.home / "mlflow.db")
    return MlflowClient(tracking_uri=bridge.uri, registry_uri=bridge.uri)


def runs(client: MlflowClient, **tags: str) -> list[Run]:
    experiment = client.get_experiment_by_name("trial")
    assert experiment is not None
    wanted = " and ".join(f"tags.`nlac.{key}` = '{value}'" for key, value in tags.items())
    return list(client.search_runs([experiment.experiment_id], wanted))


def artifacts(bridge: Bridge, run: Run) -> Path:
    """The folder from which the MLflow server gives a run's artifacts."""
    scheme, _, path = run.info.artifact_uri.partition(":/")
    assert scheme == "mlflow-artifacts"
    return bridge.home / "artifacts" / path


def rollout(store: Store, **more: object) -> Committed:
    played = episode()
    tables = {"episodes": [played], "transitions": transitions(played)}
    return commit_rows(store, "rollout", 0, tables, **more)  # type: ignore[arg-type]


def adapter(tmp_path: Path, name: str) -> Path:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(name.encode())
    return folder


@pytest.mark.slow
def test_an_iteration_is_one_run_with_a_child_a_stage(
    store: Store, bridge: Bridge, client: MlflowClient
) -> None:
    first = bridge.start_stage("trial", 0, "rollout", "1234", "http://127.0.0.1:4200/runs/flow-run/1234")
    second = bridge.start_stage("trial", 0, "critic-sft")
    [parent] = runs(client, kind="iteration")
    children = {run.info.run_id: run for run in runs(client, kind="stage")}
    assert set(children) == {first, second}
    assert all(run.data.tags["mlflow.parentRunId"] == parent.info.run_id for run in children.values())
    assert "http://127.0.0.1:4200/runs/flow-run/1234" in children[first].data.tags["mlflow.note.content"]
    assert children[first].data.tags["nlac.prefect_flow_run_id"] == "1234"
    bridge.link(second or "", "5678", "http://127.0.0.1:4200/runs/flow-run/5678")
    linked = client.get_run(second).data.tags
    assert linked["nlac.prefect_flow_run_id"] == "5678" and "5678" in linked["mlflow.note.content"]
    bridge.link(second or "", "5678", "http://127.0.0.1:4200/) <script> [a](http://x")
    note = client.get_run(second).data.tags["mlflow.note.content"]
    assert "<script>" not in note and note.count("](") == 1, "a note is shown as Markdown"
    bridge.link(second or "", "9012", None)
    relinked = client.get_run(second).data.tags
    assert relinked["nlac.prefect_flow_run_id"] == "9012"
    [training] = runs(client, kind="training")
    assert parent.data.tags["mlflow.parentRunId"] == training.info.run_id
    assert (training.info.run_name, training.info.status) == ("trial", "RUNNING")
    bridge.finish_iteration("trial", 0, ok=True)
    for run in (parent, training):
        assert client.get_run(run.info.run_id).info.status == "FINISHED"
    bridge.start_stage("trial", 1, "rollout")
    assert client.get_run(training.info.run_id).info.status == "FINISHED", "a stage alone is no training"
    bridge.begin_iteration("trial", 1)
    assert [run.info.run_id for run in runs(client, kind="training")] == [training.info.run_id]
    assert client.get_run(training.info.run_id).info.status == "RUNNING"
    bridge.note_iteration("trial", 0, "# how it went")
    assert client.get_run(parent.info.run_id).data.tags["mlflow.note.content"] == "# how it went"


def test_a_training_run_has_its_curves_by_iteration_and_by_optimizer_step(
    store: Store, bridge: Bridge, client: MlflowClient
) -> None:
    for iteration, successes in enumerate((2, 6)):
        tables: dict[str, list[Row]] = {"training_steps": list(training_steps(3))}
        bridge.finish_stage(None, commit_rows(store, "critic-sft", iteration, tables), CONFIG)
        rows: list[Row] = [evaluation(f"p{iteration}", successes, iteration=iteration)]
        bridge.finish_stage(None, commit_rows(store, "evaluation", iteration, {"evaluations": rows}), CONFIG)
    [training] = runs(client, kind="training")

    def curve(name: str) -> list[tuple[int, float]]:
        return [(m.step, m.value) for m in client.get_metric_history(training.info.run_id, name)]

    assert curve("success_rate") == [(0, 0.2), (1, 0.6)]
    assert curve("critic-sft/seconds") == [(0, 1.5), (1, 1.5)]
    assert [step for step, _ in curve("critic-sft/train.loss")] == [0, 1, 2, 3, 4, 5]
    assert curve("critic-sft/train.loss")[3][1] == 1.0, "the second iteration's first step"


def test_the_tasks_of_an_evaluation_are_one_dataset_however_often_they_are_played(
    store: Store, bridge: Bridge, client: MlflowClient
) -> None:
    for iteration in (0, 1):
        played = [
            episode(n, iteration=iteration, split="eval", task_id=f"t{n % 2}", episode_id=f"e{iteration}/{n}")
            for n in range(4)
        ]
        tables: dict[str, list[Row]] = {
            "episodes": list(played), "transitions": [step for row in played for step in transitions(row)],
            "evaluations": [evaluation("p", 1, iteration=iteration)],
        }  # fmt: skip
        bridge.finish_stage(None, commit_rows(store, "evaluation", iteration, tables), CONFIG)
    experiment = client.get_experiment_by_name("trial")
    assert experiment is not None
    [dataset] = client.search_datasets([experiment.experiment_id])
    assert dataset.name == "eval tasks of trial"
    records = TracingClient(bridge.uri).store._load_dataset_records(dataset.dataset_id)[0]
    inputs = sorted((record.inputs for record in records), key=lambda one: str(one["task_id"]))
    assert inputs == [
        {"environment": "game", "task_id": task, "observation": "saw 0"} for task in ("t0", "t1")
    ]
    assert bridge.forget_run("trial") and client.search_datasets([experiment.experiment_id]) == []


def test_a_run_called_default_has_the_only_experiment_of_that_name(
    store: Store, bridge: Bridge, client: MlflowClient
) -> None:
    bridge.start_stage("default", 0, "rollout")
    Bridge(store.root).start_stage("default", 0, "critique")
    assert [experiment.name for experiment in client.search_experiments()] == ["default"]


def test_a_data_root_can_be_moved(store: Store, bridge: Bridge, client: MlflowClient, tmp_path: Path) -> None:
    folder = adapter(tmp_path, "policy0")
    trained = commit_rows(store, "policy-distillation", 0, {}, adapters={"policy": folder})
    run_id = bridge.finish_stage(None, trained, CONFIG)
    version = trained.manifest.adapters["policy"].version
    rows: list[Row] = [evaluation(version, 5, split="validation")]
    bridge.finish_stage(None, commit_rows(store, "evaluation", 0, {"evaluations": rows}), CONFIG)
    moved = store.root.rename(tmp_path / "elsewhere")
    with sqlite3.connect(moved / ".mlflow" / "mlflow.db") as database:
        assert not any(str(store.root) in line for line in database.iterdump())
    there = Bridge(moved)
    run = MlflowClient(tracking_uri=there.uri).get_run(run_id or "")
    assert (artifacts(there, run) / "config.yaml").is_file()
    [source, *_] = there.aliased_sources() or []
    assert Path(source) == moved / trained.path.relative_to(store.root) / "policy" and Path(source).is_dir()


def test_a_finished_stage_carries_its_numbers_parameters_datasets_and_files(
    store: Store, bridge: Bridge, client: MlflowClient
) -> None:
    determined = {"critic": {"learning_rate": 2e-4, "epochs": 1}, "seed": 0}
    inputs = {"rollout@00000.transitions": "ab" * 32, "critic-sft@00000/optimizer.pt": "cd" * 32}
    committed = commit_rows(
        store, "critic-sft", 0, {"training_steps": training_steps(3)}, config=determined, inputs=inputs,
        metrics={"target_moved": 0.5},
    )  # fmt: skip
    run_id = bridge.finish_stage(bridge.start_stage("trial", 0, "critic-sft"), committed, CONFIG)
    assert run_id is not None
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params == {"critic.learning_rate": "0.0002", "critic.epochs": "1", "seed": "0"}
    assert run.data.metrics["target_moved"] == 0.5
    assert run.data.metrics["training_steps.rows"] == 3
    losses = [(m.step, m.value) for m in client.get_metric_history(run_id, "train.loss")]
    assert losses == [(0, 1.0), (1, 0.5), (2, 1 / 3)]
    datasets = {d.dataset.name: (d.dataset.digest, d.tags[0].value) for d in run.inputs.dataset_inputs}
    assert datasets == {
        "critic-sft.training_steps": (committed.manifest.tables["training_steps"].digest[:32], "output"),
        "rollout.transitions": ("ab" * 16, "input"),
        "critic-sft.optimizer.pt": ("cd" * 16, "input"),
    }
    assert run.data.tags["nlac.fingerprint"] == committed.manifest.fingerprint
    assert store.root / run.data.tags["nlac.folder"] == committed.path
    kept = artifacts(bridge, run)
    assert (kept / "manifest.json").read_text() == (committed.path / "manifest.json").read_text()
    assert "run: trial" in (kept / "config.yaml").read_text()
    assert run_id in (bridge.url(run_id) or "")


@pytest.mark.slow
def test_a_committed_stage_that_mlflow_lacks_is_logged_once(
    store: Store, bridge: Bridge, client: MlflowClient
) -> None:
    committed = rollout(store)
    first = bridge.ensure_logged(committed, CONFIG)
    assert bridge.ensure_logged(committed, CONFIG) == first
    [run] = runs(client, kind="stage")
    assert (run.info.run_id, run.info.status) == (first, "FINISHED")
    assert run.info.end_time - run.info.start_time == 1500  # as long as the stage took, not as the logging


def test_a_forced_second_attempt_is_logged_beside_the_first(
    store: Store, bridge: Bridge, client: MlflowClient
) -> None:
    first = bridge.ensure_logged(rollout(store), CONFIG)
    second = bridge.ensure_logged(rollout(store, attempt=2), CONFIG)
    assert first != second
    assert len(runs(client, kind="stage")) == 2


def test_a_failed_stage_keeps_its_reason_and_a_killed_one_does_not_stay_running(
    bridge: Bridge, client: MlflowClient
) -> None:
    failed = bridge.start_stage("trial", 0, "critique")
    bridge.fail_stage(failed, "no futures: \x1b]8;;http://x\x07<script>[a](http://x)")
    bridge.fail_stage(None, "one that MLflow never knew")
    killed = bridge.start_stage("trial", 0, "critique")
    bridge.start_stage("trial", 0, "critique")
    assert failed and killed
    assert client.get_run(failed).info.status == "FAILED"
    said = client.get_run(failed).data.tags["nlac.error"]
    assert said == "no futures: \\x1b]8;;http://x\\x07<script>[a](http://x)", "a tag is shown as text"
    assert client.get_run(killed).info.status == "KILLED"


def test_a_prompt_gets_a_version_only_when_its_text_changes(store: Store, client: MlflowClient) -> None:
    def used(text: str, iteration: int) -> None:
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        committed = commit_rows(store, "critique", iteration, {"critiques": []}, prompts={"evaluate": digest})
        told = Bridge(store.root, lambda logged: {"evaluate": text} if logged == committed else {})
        run_id = told.finish_stage(None, committed, CONFIG)
        assert run_id and '"nlac-evaluate"' in client.get_run(run_id).data.tags["mlflow.linkedPrompts"]

    for iteration, text in enumerate(
        ["was it {{ good }}?", "was it {{ good }}?", "was it bad?", "was it {{ good }}?"]
    ):
        used(text, iteration)
    found = client.search_model_versions("name = 'nlac-evaluate' and tags.`mlflow.prompt.is_prompt` = 'true'")
    committed = commit_rows(store, "critique", 4, {"critiques": []}, prompts={"evaluate": "another's"})
    run_id = Bridge(store.root, lambda logged: {"evaluate": "not that text"}).finish_stage(
        None, committed, CONFIG
    )
    assert run_id and "mlflow.linkedPrompts" not in client.get_run(run_id).data.tags
    texts = {int(v.version): v.tags["mlflow.prompt.text"] for v in found}
    assert texts == {1: "was it {{ good }}?", 2: "was it bad?"}


def test_adapters_are_model_versions_whose_source_is_the_committed_folder(
    store: Store, bridge: Bridge, client: MlflowClient, tmp_path: Path
) -> None:
    adapters = {"critic": adapter(tmp_path, "critic"), "target": adapter(tmp_path, "target")}
    committed = commit_rows(store, "critic-sft", 0, {}, adapters=adapters)
    run_id = bridge.finish_stage(None, committed, CONFIG)
    assert bridge.finish_stage(run_id, committed, CONFIG) == run_id  # registers nothing twice
    for kind in ("critic", "target"):
        [version] = client.search_model_versions(f"name = '{kind}'")
        assert store.root / str(version.source) == committed.path / kind
        assert version.tags["nlac.version"] == committed.manifest.adapters[kind].version
        assert version.run_id == run_id
    [experiment] = client.search_experiments(filter_string="name = 'trial'")
    assert {m.name for m in client.search_logged_models([experiment.experiment_id])} == {"critic", "target"}
    assert list(bridge.home.rglob("*.safetensors")) == []


def test_the_policy_that_is_best_on_the_validation_tasks_is_the_champion(
    store: Store, bridge: Bridge, client: MlflowClient, tmp_path: Path
) -> None:
    def trained_and_evaluated(iteration: int, successes: int | None, reported: int, failed: int = 0) -> str:
        folder = adapter(tmp_path, f"policy{iteration}")
        trained = commit_rows(store, "policy-distillation", iteration, {}, adapters={"policy": folder})
        bridge.finish_stage(None, trained, CONFIG)
        version = trained.manifest.adapters["policy"].version
        rows = [evaluation(version, reported, iteration=iteration)]
        if successes is not None:
            rows.append(
                evaluation(version, successes, iteration=iteration, split="validation", failed=failed)
            )
        bridge.finish_stage(None, commit_rows(store, "evaluation", iteration, {"evaluations": rows}), CONFIG)
        return version

    def champion() -> tuple[str, str]:
        aliases = ("champion", "champion-trial")
        first, second = (client.get_model_version_by_alias("policy", alias) for alias in aliases)
        return first.tags["nlac.version"], second.tags["nlac.version"]

    trained_and_evaluated(0, None, 10)
    assert client.get_registered_model("policy").aliases == {}, "the eval split is only reported"
    trained_and_evaluated(1, 2, 9)
    better = trained_and_evaluated(2, 5, 3)
    assert champion() == (better, better)
    trained_and_evaluated(3, 5, 8)
    trained_and_evaluated(4, None, 10)
    bridge.finish_stage(None, commit_rows(store, "evaluation", 5, {}), CONFIG)  # it has measured nothing
    trained_and_evaluated(6, 10, 10, failed=1)  # a lucky rest of an outage: ten of eleven are below 95%
    assert champion() == (better, better)
    [parent] = runs(client, kind="iteration", iteration="2")
    assert (parent.data.metrics["success_rate"], parent.data.metrics["validation_success_rate"]) == (0.3, 0.5)
    tags = client.get_model_version_by_alias("policy", "champion").tags
    assert (tags["nlac.success_rate"], tags["nlac.validation_success_rate"]) == ("0.3", "0.5")


@pytest.mark.slow
def test_two_processes_that_start_at_once_share_one_store_and_one_iteration_run(bridge: Bridge) -> None:
    code = (
        "import sys; from pathlib import Path; from storage.mlflow.bridge import Bridge\n"
        "assert Bridge(Path(sys.argv[1])).start_stage('trial', 0, sys.argv[2])"
    )
    environment = {**os.environ, "PYTHONPATH": str(PROJECT_ROOT)}
    started = [
        subprocess.Popen([sys.executable, "-c", code, str(bridge.root), stage], env=environment)
        for stage in ("rollout", "critique")
    ]
    assert [process.wait(120) for process in started] == [0, 0]
    client = MlflowClient(tracking_uri=bridge.uri)
    assert len(runs(client, kind="training")) == len(runs(client, kind="iteration")) == 1
    assert len(runs(client, kind="stage")) == 2
    assert [path.stat().st_mode & 0o777 for path in (bridge.home, bridge.home / "mlflow.db")] == [
        0o700,
        0o600,
    ]


def test_a_store_that_can_not_be_written_is_a_warning_and_the_stage_lives(
    store: Store, bridge: Bridge, caplog: pytest.LogCaptureFixture
) -> None:
    bridge.home.parent.mkdir(parents=True)
    bridge.home.write_text("in the way")
    assert bridge.start_stage("trial", 0, "rollout") is None
    assert bridge.finish_stage(None, rollout(store), CONFIG) is None
    assert str(bridge.home) in caplog.text


def test_neither_the_environment_s_tracking_server_nor_its_keys_are_touched(
    store: Store, bridge: Bridge, client: MlflowClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'theirs.db'}")
    monkeypatch.setenv("NLAC_TEST_KEY", "secret-value")
    engine = {
        "backend": "openai",
        "base_url": "http://127.0.0.1:1/v1",
        "model": "m",
        "api_key_env": "NLAC_TEST_KEY",
    }
    config = Config.model_validate({"run": "trial", "engines": {"local": engine}})
    bridge.finish_stage(None, rollout(store), config)
    assert runs(client, kind="stage")
    assert not (tmp_path / "theirs.db").exists()
    with sqlite3.connect(bridge.home / "mlflow.db") as database:
        assert not any("secret-value" in line for line in database.iterdump())
    texts = [p.read_text() for p in bridge.home.rglob("*.yaml")]
    assert texts and not any("secret-value" in text for text in texts)
