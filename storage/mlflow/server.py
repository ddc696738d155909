"""The command that shows the data root's MLflow store in a browser."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from storage.guard import SECRET

USUAL_PORT = 4218
DATABASE = "mlflow.db"


def server_command(data_root: Path, port: int, secret: str) -> tuple[list[str], dict[str, str]]:
    """The MLflow server over a data root's store: its command line and environment.

    Args:
        data_root: the data root.
        port: a free port of 127.0.0.1.
        secret: "user:password", for which its pages ask.
    """
    home = data_root.resolve() / ".mlflow"
    command = [
        sys.executable, "-m", "mlflow", "server",
        "--backend-store-uri", f"sqlite:///{home / DATABASE}",
        "--serve-artifacts", "--artifacts-destination", (home / "artifacts").as_uri(),
        "--host", "127.0.0.1", "--port", str(port), "--workers", "1", "--app-name", "nlac",
    ]  # fmt: skip
    return command, {**_without_mlflow(os.environ), **_SWITCHES, SECRET: secret}


_SWITCHES = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # else it starts ten processes
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
}


def _without_mlflow(environment: Mapping[str, str]) -> dict[str, str]:
    # The user's MLFLOW_* settings belong to another server.
    return {k: v for k, v in environment.items() if not k.startswith(("MLFLOW_", "_MLFLOW_"))}
