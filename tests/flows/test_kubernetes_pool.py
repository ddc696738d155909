"""A Kubernetes pool on a real Prefect server: a real worker sends its job, to a server that only keeps it."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from flows.stack.environment import client_environment
from flows.stack.private import stack_secret
from schemas.load import PROJECT_ROOT
from tests.support.kubernetes import FOLDER, Manifest, as_sent, check, kubeconfig, manifests, template_of
from tests.support.stack import LocalStack

pytestmark = pytest.mark.server
POOL = "kubernetes-training"
PREFECT = [sys.executable, "-m", "prefect"]


@contextmanager
def keeping_server() -> Iterator[tuple[str, list[tuple[str, Manifest]]]]:
    """A server that answers as Kubernetes does to a job that it makes: its address, and what it was sent where."""
    sent: list[tuple[str, Manifest]] = []

    class Keep(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            sent.append((self.path, body))
            named = {**body["metadata"], "name": f"{body['metadata']['generateName']}x7k2p"}
            answer = json.dumps({**body, "metadata": named}).encode()
            self.send_response(201)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing on the tests' output."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Keep)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", sent
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def pool(stack: LocalStack) -> Iterator[str]:
    """A pool that `prefect work-pool create` made of a template, as docs/cluster.md says; gone afterwards."""
    template = str(FOLDER / "pools" / "training.json")
    stack.prefect("work-pool", "create", POOL, "--type", "kubernetes", "--base-job-template", template)
    try:
        yield POOL
    finally:
        stack.prefect("--no-prompt", "work-pool", "delete", POOL)


def settings_of_a_worker() -> dict[str, str]:
    """What workers.yaml sets by value; the observer needs a cluster to watch."""
    (workers,) = (one for one in manifests() if one["metadata"]["name"] == "nlac-workers")
    entries = workers["spec"]["template"]["spec"]["containers"][0]["env"]
    given = {entry["name"]: entry["value"] for entry in entries if "value" in entry}
    return given | {"PREFECT_INTEGRATIONS_KUBERNETES_OBSERVER_ENABLED": "false"}


def test_a_worker_sends_a_job_that_fits_the_schemas_and_holds_no_secret(
    stack: LocalStack, pool: str, tmp_path: Path
) -> None:
    pytest.importorskip("prefect_kubernetes", reason="prefect-kubernetes is not installed")
    assert stack.api(f"/work_pools/{pool}")["base_job_template"] == template_of("training")
    flow = stack.api("/deployments/name/nlac/critic-sft")
    kept = {name: flow[name] for name in ("flow_id", "entrypoint", "path", "pull_steps")}
    made = stack.api("/deployments/", {"name": POOL, "work_pool_name": pool, "paused": False, **kept})
    try:
        run = stack.api(f"/deployments/{made['id']}/create_flow_run", {"state": {"type": "SCHEDULED"}})
        with keeping_server() as (address, sent):
            # A worker's pod has no profile, only the secret of clients; the stack's profile has the server's too.
            environment = client_environment(stack.data, stack.api_url) | settings_of_a_worker()
            environment["PREFECT_PROFILES_PATH"] = str(tmp_path / "profiles.toml")
            environment["PREFECT_API_AUTH_STRING"] = stack_secret(stack.data)
            done = subprocess.run(
                [*PREFECT, "worker", "start", "--pool", pool, "--run-once", "--type", "kubernetes"],
                cwd=PROJECT_ROOT, env=environment | {"KUBECONFIG": str(kubeconfig(tmp_path, address))},
                capture_output=True, text=True, timeout=300,
            )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        ((path, job),) = sent
        assert path == "/apis/batch/v1/namespaces/nlac/jobs", done.stdout + done.stderr
        assert job["metadata"]["labels"]["prefect.io/flow-run-id"] == run["id"]
        assert stack_secret(stack.data).partition(":")[2] not in json.dumps(job)
        check(as_sent(job))
        assert stack.run(run["id"])["infrastructure_pid"].startswith("nlac:")
    finally:
        stack.prefect("--no-prompt", "deployment", "delete", f"nlac/{POOL}")
