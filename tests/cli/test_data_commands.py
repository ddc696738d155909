"""The commands that look at data, as a user calls them."""

import base64
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import polars as pl
import psutil
import pytest
import yaml
from typer.testing import CliRunner, Result

from flows.cli.main import app
from flows.stack.environment import profiles_path
from flows.stack.private import stack_secret
from schemas.config import Config
from schemas.load import PROJECT_ROOT, dump_config, load_config
from schemas.rows import TABLES
from storage.mlflow.bridge import Bridge
from storage.store import Store
from tasks.algorithms import ALGORITHMS
from tasks.pipeline.decision import resolve_inputs
from tasks.pipeline.fingerprint_inputs import collect_fingerprint_inputs
from tasks.pipeline.iterations import begin_iteration
from tasks.pipeline.registry import STAGES
from tests.support.committed import commit_rows
from tests.support.logs import conversation, write_json
from tests.support.rows import episode, transitions
from tests.support.waiting import wait_until


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data")


def nlac(store: Store, *words: str) -> Result:
    return CliRunner().invoke(app, list(words), env={"NLAC_DATA": str(store.root)})


def played(store: Store) -> Path:
    row = episode(success=True)
    tables = {"episodes": [row], "transitions": transitions(row)}
    return commit_rows(store, "rollout", 0, tables).path


def test_sql_answers_over_committed_data(store: Store) -> None:
    played(store)
    query = "select iteration, avg(success::int) as rate from episodes group by 1"
    assert json.loads(nlac(store, "sql", query, "--format", "json").stdout) == [{"iteration": 0, "rate": 1.0}]
    assert nlac(store, "sql", query, "--format", "csv").stdout == "iteration,rate\n0,1.0\n"
    assert "rate" in nlac(store, "sql", query).stdout
    parquet = nlac(store, "sql", query, "--format", "parquet").stdout_bytes
    assert pl.read_parquet(io.BytesIO(parquet)).rows() == [(0, 1.0)]


def test_sql_writes_to_a_file(store: Store, tmp_path: Path) -> None:
    played(store)
    out = tmp_path / "out.parquet"
    assert nlac(store, "sql", "from transitions", "--format", "parquet", "--output", str(out)).exit_code == 0
    assert pl.read_parquet(out).height == 2


def test_sql_alone_lists_every_table_with_its_columns(store: Store) -> None:
    listed = nlac(store, "sql").stdout
    for name, model in TABLES.items():
        assert f"\n{name}: " in f"\n{listed}"
        assert all(column in listed for column in model.model_fields)
    assert "the environment's own definition of success" in listed
    assert not store.root.exists()


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("select sucess from episodes", '"success"'),
        ("select * from epsodes", '"episodes"'),
        ("selec 1", "syntax error"),
        ("", "empty"),
    ],
)
def test_a_wrong_query_is_one_line_with_the_near_name(store: Store, query: str, said: str) -> None:
    played(store)
    result = nlac(store, "sql", query)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "query",
    [
        "from read_text('{secret}')",
        "from read_blob('{folder}/../secret')",
        "from read_csv('{secret}')",
        "from '{secret}'",
        "from glob('{folder}/*')",
        "from query('from read_text(''{secret}'')')",
        "from sniff_csv('{secret}')",
        "from read_parquet('{folder}/other.parquet')",
        "select * from episodes, read_text('{secret}')",
        "copy episodes to '{folder}/copy.csv'",
        "explain analyze copy episodes to '{folder}/copy.csv'",
        "export database '{folder}/copy'",
        "attach '{folder}/new.db'",
        "install httpfs",
        "load httpfs",
        "from enable_logging(storage='file', storage_path='{folder}/logs')",
        "from enable_profiling(save_location='{folder}/profile')",
        "set enable_external_access = true",
        "set lock_configuration = false",
        "reset allowed_paths",
        "create table copied as from episodes",
        "drop view episodes",
        "pragma memory_limit='1GB'",
        "select 1; select 2",
        "select 1; copy episodes to '{folder}/copy.csv'",
    ],
)
def test_a_query_reads_the_tables_and_no_other_file(store: Store, tmp_path: Path, query: str) -> None:
    played(store)
    secret, folder = tmp_path / "secret", tmp_path / "folder"
    secret.write_text("planted\n")
    folder.mkdir()
    pl.DataFrame({"a": ["planted"]}).write_parquet(folder / "other.parquet")
    result = nlac(store, "sql", query.format(secret=secret, folder=folder), "--format", "csv")
    assert (result.exit_code, len(result.stderr.strip().splitlines())) == (2, 1)
    assert "planted" not in result.output
    assert [path.name for path in folder.iterdir()] == ["other.parquet"]


@pytest.mark.parametrize(
    "query",
    [
        "explain from episodes",
        "describe lineage",
        "show tables",
        "summarize episodes",
        "values (1)",
        "with e as (from episodes) select * from e -- one; two",
        "from superseded.episodes union all by name from episodes;",
        "from (pivot episodes on done in (true) using count(*))",
    ],
)
def test_every_way_to_ask_the_tables_is_allowed(store: Store, query: str) -> None:
    played(store)
    result = nlac(store, "sql", query, "--format", "csv")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("\n") > 1


def test_unsafe_runs_any_sql(store: Store, tmp_path: Path) -> None:
    played(store)
    out = tmp_path / "out.csv"
    copied = nlac(
        store, "sql", f"set threads = 1; copy (select success from episodes) to '{out}'", "--unsafe"
    )
    assert copied.exit_code == 0, copied.stderr
    assert out.read_text() == "success\ntrue\n"
    read = nlac(store, "sql", f"select success from '{out}'", "--unsafe", "--format", "csv")
    assert read.stdout == "success\ntrue\n"


COUNT = "select count(*) as n from episodes"


def damaged(store: Store, what: str) -> Path:
    """Take something away from a store of one rollout, and say which file lacks."""
    folder = played(store)
    current = store.current_path("trial", 0)
    if what == "current.json":
        current.unlink()
        return current
    if what == "iterations":
        shutil.rmtree(current.parent.parent)
        return current
    if what == "root":
        shutil.rmtree(store.root)
        return store.root
    if what == "stage":
        shutil.rmtree(folder.parent.parent)
        return folder / "manifest.json"
    file = folder / ("manifest.json" if what == "manifest" else "episodes.parquet")
    if what == "truncated":
        file.write_bytes(file.read_bytes()[:-9])
    else:
        file.unlink()
    return file


@pytest.mark.parametrize(
    "what", ["current.json", "iterations", "root", "stage", "manifest", "truncated", "removed"]
)
def test_what_is_gone_is_named_and_ends_sql_and_verify_with_3(store: Store, what: str) -> None:
    gone = damaged(store, what)
    asked = nlac(store, "sql", COUNT, "--format", "csv")
    assert (asked.exit_code, asked.stdout) == (3, "")
    assert str(gone) in asked.stderr and "--allow-missing" in asked.stderr
    allowed = nlac(store, "sql", COUNT, "--format", "csv", "--allow-missing")
    assert (allowed.exit_code, allowed.stdout) == (0, "n\n0\n")
    assert str(gone) in allowed.stderr
    checked = nlac(store, "verify")
    assert checked.exit_code == 3 and str(gone) in checked.stderr
    assert "all files are" not in checked.stdout
    allowed = nlac(store, "verify", "--allow-missing")
    assert allowed.exit_code == 0 and str(gone) in allowed.stderr


@pytest.mark.parametrize("what", ["root", "current.json", "removed"])
@pytest.mark.parametrize(
    "words",
    [
        ("show", "--failed"),
        ("show", "trial/00000/train/00000"),
        ("runs", "list"),
        ("runs", "compare", "trial", "trial"),
        ("report", "--run", "trial"),
    ],
)
def test_what_is_gone_ends_every_list_with_3_until_it_may_be_missing(
    store: Store, words: tuple[str, ...], what: str
) -> None:
    gone = damaged(store, what)
    asked = nlac(store, *words)
    assert (asked.exit_code, asked.stdout) == (3, "")
    assert f"left out: {gone}" in asked.stderr
    allowed = nlac(store, *words, "--allow-missing")
    assert allowed.exit_code in (0, 2), "what is left may be too little for an answer"
    assert f"left out: {gone}" in allowed.stderr


def test_verify_counts_and_finds_a_changed_byte_whatever_may_be_missing(store: Store) -> None:
    file = played(store) / "transitions.parquet"
    whole = nlac(store, "verify")
    assert whole.exit_code == 0
    assert "1 run, 1 iteration, 1 stage and 0 superseded, 2 files, " in whole.stdout
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    result = nlac(store, "verify", "--allow-missing")
    assert result.exit_code == 3
    assert str(file) in result.stderr


def test_verify_repair_rebuilds_what_the_manifests_allow(store: Store) -> None:
    gone = damaged(store, "iterations")
    repaired = nlac(store, "verify", "--repair")
    assert repaired.exit_code == 0 and f"{gone}: rebuilt" in repaired.stdout
    assert nlac(store, "sql", COUNT, "--format", "csv").stdout == "n\n1\n"


def committed_rollout(store: Store, config: Config) -> None:
    """A rollout whose fingerprint_inputs are those of this very program, without having played it."""
    begin_iteration(store, config, 0)
    stage, inputs = STAGES["rollout"], resolve_inputs(store, config, "rollout", 0)
    fingerprint_inputs = collect_fingerprint_inputs(stage, config, 0, inputs)
    commit_rows(
        store,
        "rollout",
        0,
        {"episodes": [], "transitions": []},
        run=config.run,
        fingerprint_inputs=fingerprint_inputs,
    )


@pytest.fixture
def scripted(tmp_path: Path) -> Config:
    """A configuration whose model is a folder, so that nothing is loaded or converted."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    return Config.model_validate({"run": "trial", "model": {"name": str(model), "dtype": "float32"}})


def test_explain_says_reuse_or_names_the_field_that_changed(
    store: Store, scripted: Config, tmp_path: Path
) -> None:
    committed_rollout(store, scripted)
    same = nlac(store, "explain", "rollout", "0", "--run", "trial")
    assert same.exit_code == 0, same.stderr
    assert "rollout of iteration 0, run 'trial': reuse" in same.stdout

    changed = tmp_path / "changed.yaml"
    longer = scripted.model_copy(update={"rollout": scripted.rollout.model_copy(update={"max_steps": 99})})
    changed.write_text(dump_config(longer))
    result = nlac(store, "explain", "rollout", "0", "--config", str(changed))
    assert "recompute" in result.stdout
    assert "rollout.max_steps" in result.stdout and "99" in result.stdout
    auto = scripted.model_copy(update={"model": scripted.model.model_copy(update={"dtype": "auto"})})
    changed.write_text(dump_config(auto))
    kept = nlac(store, "explain", "rollout", "0", "--config", str(changed))
    assert "run 'trial': reuse" in kept.stdout, "with auto, the type that the run has"


def test_explain_of_a_stage_whose_input_is_missing_says_which(store: Store) -> None:
    result = nlac(store, "explain", "bellman-targets", "0")
    assert result.exit_code == 1
    assert "rollout" in result.stderr
    unknown = nlac(store, "explain", "critic", "0")
    assert unknown.exit_code == 2
    assert "critic-sft" in unknown.stderr


def test_the_remedy_of_an_explanation_names_the_run(store: Store) -> None:
    played(store)
    result = nlac(store, "explain", "critic-sft", "0", "--run", "trial")
    assert result.exit_code == 1
    assert "prefect deployment run nlac/cot-correction -p iteration=0 -p run=trial" in result.stderr


def test_explain_of_an_unknown_run_leaves_nothing_and_is_refused(store: Store) -> None:
    result = nlac(store, "explain", "rollout", "0", "--run", "nope")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"no run 'nope' under {store.root}; begin one with `nlac iterate`\n"
    assert not store.root.exists()
    played(store)
    near = nlac(store, "explain", "rollout", "0", "--run", "tria")
    assert near.exit_code == 2
    assert near.stderr == f"no run 'tria' under {store.root}, did you mean 'trial'? (there are: trial)\n"


def test_a_data_root_that_can_not_be_written_to_is_one_line(tmp_path: Path) -> None:
    write_json(tmp_path / "log.json", [conversation(0)])
    (tmp_path / "file").write_text("")
    root = tmp_path / "file" / "data"
    result = CliRunner().invoke(app, ["import", str(tmp_path / "log.json"), "--data", str(root)])
    assert result.exit_code == 1
    assert "Not a directory; choose another data root with --data or NLAC_DATA" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_config_check_of_a_cluster_file_needs_no_vllm_here(store: Store) -> None:
    file = str(PROJECT_ROOT / "configs" / "cluster" / "qwen2.5-7b-twenty-questions.yaml")
    result = nlac(store, "config", "check", file, "--elsewhere")
    assert result.exit_code == 0, result.stderr
    assert "critic-sft" in result.stdout and "Not checked: what must be on the machine" in result.stdout


def written(path: Path, content: Mapping[str, object]) -> str:
    path.write_text(yaml.safe_dump(content))
    return str(path)


def test_config_check_prints_what_a_run_would_do(store: Store, scripted: Config, tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(dump_config(scripted))
    result = nlac(store, "config", "check", str(file))
    assert result.exit_code == 0, result.stderr
    assert all(stage in result.stdout for stage in ALGORITHMS["nlac"].stages)
    assert "nlac-training" in result.stdout
    assert not store.root.exists()


@pytest.mark.slow
def test_config_check_says_which_type_of_weights_a_run_has_and_why(
    store: Store, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NLAC_MODEL_CACHE", str(tmp_path / "models"))
    model = {"name": str(tiny_checkpoint), "device": "cpu"}
    file = written(tmp_path / "auto.yaml", {"run": "trial", "model": model})
    probed = nlac(store, "config", "check", file)
    assert re.search(
        r"^model\.dtype: (float32|bfloat16), \d+\.\d times as fast as (bfloat16|float32) in products at \d+ x \d+ ",
        probed.stdout,
        re.MULTILINE,
    ), probed.output
    assert not store.root.exists()
    for dtype in ("float32", "bfloat16"):
        named = written(tmp_path / "named.yaml", {"run": dtype, "model": {**model, "dtype": dtype}})
        assert f"model.dtype: {dtype}, as configured\n" in nlac(store, "config", "check", named).stdout
        begin_iteration(store, load_config(named), 0)
        file = written(tmp_path / "auto.yaml", {"run": dtype, "model": model})
        kept = nlac(store, "config", "check", file).stdout
        assert f"model.dtype: {dtype}, as in iteration 0 of run '{dtype}'\n" in kept


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"critc": {}}, "critc: unknown field"),
        ({"critic": {"epochs": "many"}}, "critic.epochs"),
        ({"model": {"name": "/nowhere/at/all"}}, "model.name"),
        ({"environment": {"name": "chess"}}, "environment.name"),
    ],
)
def test_config_check_refuses_with_one_line_that_names_the_field(
    store: Store, tmp_path: Path, content: dict[str, object], said: str
) -> None:
    result = nlac(store, "config", "check", written(tmp_path / "bad.yaml", content))
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not store.root.exists()


def test_config_show_prints_a_file_that_gives_the_same_configuration(store: Store, tmp_path: Path) -> None:
    original = written(tmp_path / "a.yaml", {"run": "mine", "target": {"tau": 0.5}})
    shown = tmp_path / "b.yaml"
    shown.write_text(nlac(store, "config", "show", original).stdout)
    assert load_config(shown) == load_config(original)


def test_export_refuses_what_it_can_not_do(store: Store, tmp_path: Path) -> None:
    nothing = nlac(store, "export", "policy", str(tmp_path / "out"))
    assert nothing.exit_code == 1
    assert "no trained policy" in nothing.stderr and "--merge" in nothing.stderr
    assert not (tmp_path / "out").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("keep")
    full = nlac(store, "export", "policy", str(tmp_path / "full"), "--merge")
    assert full.exit_code == 1
    assert "not an empty folder" in full.stderr
    other = nlac(store, "export", "policy", str(tmp_path / "out"), "--iteration", "3")
    assert "iteration 3 of run 'default' has no trained policy" in other.stderr


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, flows.cli.main\n"
        "sys.exit(sorted({'duckdb', 'polars', 'torch', 'prefect', 'mlflow', 'textarena'} & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": str(PROJECT_ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stderr.strip() == "[]"


def test_mlflow_ui_without_a_store_says_what_to_do(store: Store) -> None:
    result = nlac(store, "mlflow-ui")
    assert result.exit_code == 1
    assert "make iteration" in result.stderr
    assert not store.root.exists()


@pytest.mark.slow
def test_mlflow_ui_serves_the_data_root_s_store(store: Store) -> None:
    commit = commit_rows(store, "rollout", 0, {})
    assert Bridge(store.root).ensure_logged(commit, Config(run="trial"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "mlflow-ui", "--port", str(port)],
        env={**os.environ, "PYTHONPATH": str(PROJECT_ROOT), "NLAC_DATA": str(store.root)},
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        assert f"http://127.0.0.1:{port}" in server.stdout.readline()
        assert str(profiles_path(store.root)) in server.stdout.readline()
        page = f"http://127.0.0.1:{port}"
        answer(f"{page}/health")
        experiment = f"{page}/api/2.0/mlflow/experiments/get-by-name?experiment_name=trial"
        secret = base64.b64encode(stack_secret(store.root).encode()).decode()
        known = {"Authorization": f"Basic {secret}"}
        assert json.loads(answer(experiment, known))["experiment"]["name"] == "trial"
        for path in (
            experiment,
            page,
            f"{page}/ajax-api/3.0/mlflow/assistant/config",
            f"{page}/static-files/x.js",
        ):
            assert refusal(path) == 401
        assert refusal(experiment, known | {"Origin": "http://127.0.0.1:1"}) == 403
        commands = [process.cmdline() for process in psutil.Process(server.pid).children(recursive=True)]
        assert commands and not any(
            secret in word or stack_secret(store.root) in word for c in commands for word in c
        )
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)


def refusal(address: str, headers: Mapping[str, str] = {}) -> int:
    """The status with which a server refuses a request."""
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(urllib.request.Request(address, headers=dict(headers)), timeout=30)
    return int(refused.value.code)


def answer(address: str, headers: Mapping[str, str] = {}, seconds: float = 90) -> bytes:
    """What a server that is starting says in the end."""
    request = urllib.request.Request(address, headers=dict(headers))
    said: list[bytes] = []

    def answers() -> bool:
        with (
            suppress(urllib.error.URLError, ConnectionError, TimeoutError),
            urllib.request.urlopen(request, timeout=5) as response,
        ):
            said.append(response.read())
        return bool(said)

    wait_until(answers, seconds, address)
    return said[0]
