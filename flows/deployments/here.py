"""`nlac/iteration` in a process of its own, without a worker: `nlac iterate` where no stack is up.

    python -m flows.deployments.here     (stdin: a line of JSON, {"api_url": ..., "parameters": {...}})

It loads what takes seconds before it reads that line, which names the server, so while the server starts. Its log is
stderr. If the iteration does not finish, the reason is on stdout, and the exit code is 1.
"""

import asyncio
import atexit
import json
import os
import sys
from typing import Any

from schemas.load import data_root
from storage.mlflow.bridge import Bridge
from tasks.lean_imports import lean_transformers


def load() -> None:
    """Import the libraries of an iteration, Prefect apart, and create MLflow's database where there is none."""
    Bridge(data_root()).prepare()
    with lean_transformers():
        import tasks.engines.local.engine  # noqa: F401


async def run(parameters: dict[str, Any]) -> str | None:
    """Run the flow; gives why it failed."""
    from prefect import tags  # it reads its settings, the server's address among them, when it is imported

    from flows.deployments.iteration import iteration
    from flows.stack.hosts import host_tag

    with tags(host_tag()):
        state = await iteration(**parameters, here=True, return_state=True)
    return None if state.is_completed() else state.message or state.name


def main() -> None:
    """Run what stdin asks for; nothing where it ends without a line."""
    code = 1
    # Registered first, it runs last. Python would go through all that the libraries have made, for two seconds.
    atexit.register(lambda: os._exit(code))
    load()
    if line := sys.stdin.readline():
        asked = json.loads(line)
        os.environ["PREFECT_API_URL"] = asked["api_url"]
        if reason := asyncio.run(run(asked["parameters"])):
            sys.stdout.write(f"{reason}\n")
            sys.stdout.flush()
        else:
            code = 0


if __name__ == "__main__":
    main()
