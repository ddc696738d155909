"""`nlac/iteration` in a process of its own, without a worker: `nlac iterate` where no stack is up.

    python -m flows.deployments.here     (stdin: a line of JSON, the parameters)

It loads what takes seconds before it reads that line, so while the server starts. PREFECT_API_URL names the server. Its
log is stderr. If the iteration does not finish, the reason is on stdout, and the exit code is 1.
"""

import asyncio
import atexit
import json
import os
import sys
from typing import Any

from schemas.load import data_root
from storage.mlflow.bridge import Bridge
from tasks.lean_imports import lean_transformers, without


def load() -> None:
    """Import the libraries of an iteration, and create MLflow's database where there is none."""
    Bridge(data_root()).prepare()
    with lean_transformers():
        import tasks.engines.local.engine  # noqa: F401
    with without("pandas"):  # Prefect takes it along for tasks that are given data frames
        import flows.deployments.iteration  # noqa: F401


async def run(parameters: dict[str, Any]) -> str | None:
    """Run the flow; gives why it failed."""
    from prefect import tags
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    from flows.deployments.iteration import iteration
    from flows.stack.hosts import host_tag

    # The thread of a flow's heartbeats ends up to a second late, each stage waits for it, and nothing listens here.
    with tags(host_tag()), temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        state = await iteration(**parameters, here=True, return_state=True)
    return None if state.is_completed() else state.message or state.name


def main() -> None:
    """Run what stdin asks for; nothing where it ends without a line."""
    code = 1
    # Registered before the libraries are loaded, it runs last. Python would go through all that they have made, for two
    # seconds.
    atexit.register(lambda: os._exit(code))
    load()
    if line := sys.stdin.readline():
        if reason := asyncio.run(run(json.loads(line))):
            sys.stdout.write(f"{reason}\n")
            sys.stdout.flush()
        else:
            code = 0


if __name__ == "__main__":
    main()
