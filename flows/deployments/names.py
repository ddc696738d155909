"""Names and tags of flow runs: by deployment, run and iteration.

Prefect calls a flow run that a person starts by two random words. A flow run gives itself a name that says what it does
as soon as it knows run and iteration, and tags by which the UI filters.
"""

from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.runtime import flow_run

from flows.deployments.reporting import not_fatal
from schemas.shards import Shard
from tasks.pipeline.registry import STAGES


def run_name(deployment: str, run: str, iteration: int | None = None, shard: Shard | None = None) -> str:
    """Name of a flow run: `critique-trial-3`, of its shard `critique-trial-3-2of8`; of iterations `training-trial`."""
    name = f"{deployment}-{run}" + ("" if iteration is None else f"-{iteration}")
    return name if shard is None else f"{name}-{shard.number}of{shard.count}"


def run_tags(
    deployment: str, run: str, iteration: int | None = None, shard: Shard | None = None
) -> list[str]:
    """Tags of a flow run: `run:trial`, `iteration:3`, of a stage `stage:critique`, and of a shard `shard:2/8`."""
    tags = [f"run:{run}"]
    tags += [] if iteration is None else [f"iteration:{iteration}"]
    tags += [] if shard is None else [f"shard:{shard}"]
    return tags + ([f"stage:{deployment}"] if deployment in STAGES else [])


def name_this_run(
    deployment: str, run: str, iteration: int | None = None, shard: Shard | None = None
) -> None:
    """Name and tag the flow run of this process, unless it was dispatched under that name."""
    name, tags = run_name(deployment, run, iteration, shard), run_tags(deployment, run, iteration, shard)
    if flow_run.name == name and set(tags) <= set(flow_run.tags):
        return
    with not_fatal("the flow run's name"), get_client(sync_client=True) as client:
        client.update_flow_run(UUID(flow_run.id), name=name, tags=sorted({*flow_run.tags, *tags}))
