"""A local stack of a benchmark's own (`nlac up` on a folder that is removed afterwards), and calls to its Prefect API.

Nothing of the user's is touched: own data root, own port, own PREFECT_HOME. Models converted before are used where
they are (NLAC_MODEL_CACHE, else the user's cache), so that no benchmark times a conversion.
"""

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from flows.stack import control
from flows.stack.environment import client_environment
from schemas.load import python_path
from tasks.engines.models import model_cache

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient


@contextmanager
def own_stack() -> Iterator[Path]:
    """Start a stack, point this process at it, stop it in the end; gives its data root.

    Prefect reads its settings when it is imported, so it must not have been before.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is stopped
    with TemporaryDirectory(prefix="nlac-benchmark-") as folder:
        root = Path(folder) / "data"
        os.environ["NLAC_MODEL_CACHE"] = str(model_cache())
        os.environ["PYTHONPATH"] = python_path()
        running = control.up(root)
        try:
            os.environ.update(client_environment(root, running.api_url))
            yield root
        finally:
            control.down(root)


async def deploy_empty(client: "PrefectClient", name: str, pool: str) -> None:
    """Deploy the empty flow on a work pool, as `nlac/rollout` is deployed on its own."""
    rollout = await client.read_deployment_by_name("nlac/rollout")
    await client.create_deployment(
        flow_id=await client.create_flow_from_name("empty"),
        name=name,
        work_pool_name=pool,
        path=rollout.path,
        entrypoint="benchmarks/overhead/deployed_flows.py:empty",
        pull_steps=rollout.pull_steps,
    )


async def redirect(client: "PrefectClient", entrypoints: Mapping[str, str]) -> None:
    """Let deployments of the program run other code: deployment name -> entrypoint."""
    from prefect.client.schemas.actions import DeploymentUpdate

    for name, entrypoint in entrypoints.items():
        deployment = await client.read_deployment_by_name(f"nlac/{name}")
        await client.update_deployment(deployment.id, DeploymentUpdate(entrypoint=entrypoint))
