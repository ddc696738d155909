"""Secrets planted wherever one can be given are shown nowhere; tests/flows/test_access.py has Prefect and processes."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli.main import app
from schemas.config import Config
from schemas.config.engines import mask_password
from schemas.load import dump_config
from storage.mlflow.bridge import Bridge
from storage.sql.views import connect
from storage.store import Store
from tasks.pipeline.iterations import run_stages
from tasks.runtime.stage import StageFailed
from tests.support.committed import commit_rows
from tests.support.planted import KEY, REMOTE, URL, leaks


@pytest.mark.slow
def test_secrets_are_in_no_artifact_log_cache_or_output(
    store: Store,
    make_config: Callable[..., Config],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("PLANTED_KEY", KEY)
    config = make_config(
        engines={"remote": REMOTE}, roles={"policy": {"engine": "remote", "structured": False}}
    )
    failure = ""
    try:
        asyncio.run(run_stages(store, config, ["rollout"]))  # nothing listens there, so every request fails
    except StageFailed as failed:
        failure = str(failed)
    errors = connect(store).sql("select error from episodes").fetchall()
    assert "reader:***@127.0.0.1" in failure or any("reader:***@127.0.0.1" in row[0] for row in errors)

    committed = store.committed("trial", "rollout", 0) or commit_rows(store, "rollout", 1, {})
    bridge = Bridge(store.root)
    run = bridge.finish_stage(None, committed, config)
    assert run is not None
    file = tmp_path / "config.yaml"
    file.write_text(dump_config(config))
    said = [failure, caplog.text, str(errors)]
    page = str(tmp_path / "page.html")
    for words in (
        ["config", "show", str(file)], ["config", "check", str(file)], ["verify"], ["runs"], ["status"],
        ["status", "--format", "json"], ["report", "--allow-missing"], ["view", "--output", page],
    ):  # fmt: skip
        said.append(CliRunner().invoke(app, words, env={"NLAC_DATA": str(store.root)}).output)
    assert "reader:***@127.0.0.1" in said[3] and not leaks("".join(said).encode())
    assert not leaks(Path(page).read_bytes())
    found = {path for path in store.root.rglob("*") if path.is_file() and leaks(path.read_bytes())}
    # The iteration's own configuration is what it runs with.
    assert found == {store.iteration_dir("trial", 0) / "config.yaml"}
    assert {path.stat().st_mode & 0o777 for path in found} == {0o600}
    artifacts = [path for path in bridge.home.rglob("config.yaml")]
    assert artifacts and all("reader:***@" in path.read_text() for path in artifacts)


@pytest.mark.parametrize("written", [
    f"engines: {URL}", f"engines: [{URL}]", f"engines: {{remote: {{backend: openai, base_url: {URL}}}}}",
    f"engines:\n  remote: {{base_url: '{URL}', backend: {{}}}}", f"engines:\n  remote: {{base_url: '{URL}'",
    f"base_url: {URL}", f"engines: {{remote: {{rules: {URL}, backend: scripted}}}}",
])  # fmt: skip
def test_a_configuration_is_refused_without_the_password_that_stands_in_it(
    written: str, tmp_path: Path
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(written)
    said = CliRunner().invoke(app, ["config", "check", str(file)], env={"NLAC_DATA": str(tmp_path / "data")})
    assert said.exit_code == 2 and str(file) in said.stderr.replace("\n", ""), said.output
    assert not leaks(said.output.encode()), said.output


@pytest.mark.parametrize(
    ("url", "shown", "password"),
    [
        (URL, "http://reader:***@127.0.0.1:9/v1", "pa%40ss-planted"),
        ("https://a:b@c@host", "https://a:***@host", "b@c"),
        ("https://:secret@host/v1?x=a:b@c", "https://:***@host/v1?x=a:b@c", "secret"),
        ("https://user@host:80/v1", "https://user@host:80/v1", ""),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1", ""),
        ("", "", ""),
    ],
)
def test_a_password_in_an_address_is_masked(url: str, shown: str, password: str) -> None:
    assert mask_password(url) == (shown, password)
