"""`nlac mlflow-ui` serves the data root's store to who knows its secret."""

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress

import psutil
import pytest

from flows.stack.environment import profiles_path
from flows.stack.private import stack_secret
from schemas.config import Config
from schemas.load import PROJECT_ROOT
from storage.mlflow.bridge import Bridge
from storage.store import Store
from tests.support.cli import nlac
from tests.support.committed import commit_rows
from tests.support.waiting import wait_until


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
