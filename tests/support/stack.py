"""A real stack (`nlac up`), as a user and a test see it."""

import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import psutil
import yaml

from flows.stack.api import ask
from flows.stack.environment import client_environment
from flows.stack.private import secret_header, stack_secret
from flows.stack.record import read_stack
from schemas.load import PROJECT_ROOT
from storage.store import Store
from tests.support.waiting import wait_until

CONFIG: dict[str, Any] = {
    "engines": {
        "rules": {"backend": "scripted", "rules": "tests.support.steered_rules:steered"},
        "served": {"backend": "openai", "serve": {}},  # nobody asks it, so nothing is started
    },
    "roles": {
        role: {"engine": "rules", "structured": role in ("policy", "evaluate", "refine")}
        for role in ("policy", "predict", "bootstrap", "correct", "evaluate", "refine")
    },
    "rollout": {"episodes": 3, "max_steps": 4},
    "replay": {"transitions": 8},
    "improvement": {"states": 4, "verdict": "written"},
    "critic": {"batch_rows": 8},
    "policy": {"batch_rows": 8},
    "evaluation": {"episodes": 2},
    "faults": {"retry_seconds": 0.1},
}


FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


@dataclass
class LocalStack:
    """The running stack, as a user and a test see it. `nlac up` was run in the folder `stands`."""

    data: Path
    home: Path
    steer: Path
    stands: Path
    config: Path
    environment: dict[str, str]
    up_said: str = ""

    @property
    def api_url(self) -> str:
        stack = read_stack(self.data)
        assert stack is not None
        return stack.api_url

    @property
    def ui_url(self) -> str:
        return self.api_url.removesuffix("/api")

    @property
    def secret_header(self) -> dict[str, str]:
        """What every request to the stack's servers needs."""
        return secret_header(stack_secret(self.data))

    @property
    def options(self) -> list[str]:
        return ["--data", str(self.data), "--config", str(self.config)]

    def config_with(self, folder: Path, **sections: object) -> str:
        """A file with the stack's configuration, sections of it replaced."""
        file = folder / "trial.yaml"
        file.write_text(yaml.safe_dump({**yaml.safe_load(self.config.read_text()), **sections}))
        return str(file)

    @property
    def store(self) -> Store:
        return Store(self.data)

    def nlac(
        self, *arguments: str, check: bool = True, cwd: Path = PROJECT_ROOT
    ) -> subprocess.CompletedProcess[str]:
        """Run `nlac`, as a user with an own Prefect profile would."""
        command = [sys.executable, "-m", "flows.cli", *arguments]
        done = subprocess.run(command, cwd=cwd, env=self.environment, capture_output=True, text=True)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def prefect(self, *arguments: str) -> str:
        """Run a plain `prefect` command against the stack."""
        environment = client_environment(self.data, self.api_url)
        done = subprocess.run(
            [sys.executable, "-m", "prefect", *arguments],
            cwd=PROJECT_ROOT, env=environment, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def api(self, path: str, body: object = None) -> Any:
        """Ask the Prefect API; again while its database is busy, as Prefect's own client does."""
        stack = read_stack(self.data)
        assert stack is not None
        said: list[Any] = []

        def answered() -> bool:
            try:
                said.append(ask(stack, path, body, seconds=60))
            except urllib.error.HTTPError as error:
                if error.code != HTTPStatus.SERVICE_UNAVAILABLE:
                    raise
            return bool(said)

        wait_until(answered, 60, f"an answer to {path}", every=1.0)
        return said[0]

    def start(self, deployment: str, **parameters: object) -> str:
        """Start a deployment as `prefect deployment run` does, without a process for it; gives the flow run's id."""
        found = self.api(f"/deployments/name/nlac/{deployment}")
        asked = {"parameters": parameters, "state": {"type": "SCHEDULED"}}
        return str(self.api(f"/deployments/{found['id']}/create_flow_run", asked)["id"])

    def run(self, flow_run: str) -> dict[str, Any]:
        """A flow run."""
        return dict(self.api(f"/flow_runs/{flow_run}"))

    def finish(self, flow_run: str, seconds: float = 300) -> dict[str, Any]:
        """Wait for a flow run's end. Each look takes the server some hundredths of a second."""
        ended = f"the end of {flow_run}"
        wait_until(lambda: self.run(flow_run)["state_type"] in FINAL, seconds, ended, every=1.0)
        return self.run(flow_run)

    def retry(self, flow_run: str, seconds: float = 180) -> dict[str, Any]:
        """Retry a flow run as a user would, and wait for the second attempt's end.

        The first attempt's process must be gone: Prefect calls the run crashed when a process ends with an error, also
        where a retry was scheduled between the run's failure and its process's end.
        """
        process = int(self.run(flow_run)["infrastructure_pid"].split(":")[-1])
        wait_until(lambda: not psutil.pid_exists(process), 60, f"the end of process {process}")
        self.prefect("flow-run", "retry", flow_run)
        second = f"the second attempt of {flow_run}"
        wait_until(lambda: self.run(flow_run)["run_count"] == 2, seconds, second, every=1.0)
        return self.finish(flow_run)

    def children(self, flow_run: str) -> list[dict[str, Any]]:
        """Flow runs it started, oldest first."""
        wanted = {"flow_runs": {"parent_flow_run_id": {"any_": [flow_run]}}, "sort": "START_TIME_ASC"}
        return list(self.api("/flow_runs/filter", wanted))

    def steps(self, flow_run: str, attempt: int, count: int) -> list[tuple[str, str]]:
        """Stages that an attempt of a flow run went through, oldest first, with the names of their states.

        The server writes down what it is told of tasks some seconds later, so this waits for `count` of them.
        """

        def recorded() -> list[dict[str, Any]]:
            return [r for r in self._tasks(flow_run) if r["flow_run_run_count"] == attempt]

        def final() -> bool:
            return sum(r["state_type"] in FINAL for r in recorded()) >= count

        wait_until(final, 60, f"{count} tasks of {flow_run}")
        return [(r["name"], r["state"]["name"]) for r in recorded()]

    def _tasks(self, flow_run: str) -> list[dict[str, Any]]:
        """Its tasks that stand for stages, oldest first."""
        runs = self.api("/task_runs/filter", {"flow_runs": {"id": {"any_": [flow_run]}}, "limit": 200})
        ours = [r for r in runs if not r["task_key"].startswith("prefect.")]
        return sorted(ours, key=lambda r: r["start_time"] or "")
