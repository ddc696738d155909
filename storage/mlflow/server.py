"""The command that shows the data root's MLflow store in a browser."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from storage.guard import SECRET
from storage.mlflow.backend import Backend

USUAL_PORT = 4218


def server_command(
    data_root: Path, port: int, secret: str, address: str = "127.0.0.1"
) -> tuple[list[str], dict[str, str]]:
    """The MLflow server over a data root's store: its command line and environment.

    Args:
        data_root: the data root.
        port: a free port of the address.
        secret: "user:password", for which its pages ask.
        address: of this host, on which it listens.

    Raises:
        DatabaseError: NLAC_MLFLOW_DATABASE is wrong.
    """
    backend = Backend(data_root)
    command = [
        sys.executable, "-m", "mlflow", "server",
        "--serve-artifacts", "--artifacts-destination", (backend.home / "artifacts").as_uri(),
        "--host", address, "--port", str(port), "--workers", "1", "--app-name", "nlac",
    ]  # fmt: skip
    if address != "127.0.0.1":
        own = f"{address}:{port}"
        command += ["--allowed-hosts", f"localhost:*,{own}", "--cors-allowed-origins", f"http://{own}"]
    given = {"MLFLOW_BACKEND_STORE_URI": backend.uri(), SECRET: secret}  # no command line shows a password
    return command, {**_without_mlflow(os.environ), **_SWITCHES, **given}


_SWITCHES = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # else it starts ten processes
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
}


def _without_mlflow(environment: Mapping[str, str]) -> dict[str, str]:
    # The user's MLFLOW_* settings belong to another server.
    return {k: v for k, v in environment.items() if not k.startswith(("MLFLOW_", "_MLFLOW_"))}
