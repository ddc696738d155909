"""Prepare a Prefect server: work pools, this host's GPU limit, and the end of runs that an earlier stack left.

The supervisor runs it as `python -m flows.stack.provision` before any worker starts, against the server in
PREFECT_API_URL. With `--lost` it only ends lost runs: after a worker or the server has died, or a host (`--gone`),
while others work on.
"""

import argparse
import asyncio
import sys
from contextlib import suppress
from pathlib import Path

from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate, WorkPoolCreate, WorkPoolUpdate
from prefect.exceptions import ObjectNotFound
from prefect.workers.process import ProcessWorker

from flows.stack import gpu_limit
from flows.stack.lost_runs import end_left_runs, end_lost_runs
from schemas.config import PoolsSection
from schemas.load import load_config


async def make_pools(client: PrefectClient, pools: PoolsSection) -> None:
    """Create the three work pools, and anew the limit that keeps the stages of both GPU pools apart on this host.

    A pool itself has no limit: each worker of a GPU pool takes one stage at a time.
    """
    for name in (pools.orchestration, pools.inference, pools.training):
        try:
            await client.read_work_pool(name)
        except ObjectNotFound:
            template = ProcessWorker.get_default_base_job_template()
            await client.create_work_pool(
                WorkPoolCreate(name=name, type="process", base_job_template=template)
            )
        await client.update_work_pool(name, WorkPoolUpdate(concurrency_limit=None))
    # No stage runs on this host yet, so a slot that is taken belonged to an earlier stack. Its lease goes with the
    # limit.
    with suppress(ObjectNotFound):
        await client.delete_global_concurrency_limit_by_name(gpu_limit())
    await client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=gpu_limit(), limit=1))


async def provision(config: Path | None) -> None:
    """Make the server ready for this host's workers of this configuration's pools."""
    async with get_client() as client:
        pools = load_config(config).pools
        await make_pools(client, pools)
        await end_left_runs(client, pools)


async def settle(config: Path | None, gone: list[str]) -> bool:
    """As `end_lost_runs`, for this configuration's pools."""
    async with get_client() as client:
        return await end_lost_runs(client, load_config(config).pools, gone)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path)
    parser.add_argument("--lost", action="store_true", help="ends with 1 while a run is in doubt")
    parser.add_argument("--gone", action="append", default=[], help="a worker of another host that is gone")
    given = parser.parse_args()
    if given.lost:
        sys.exit(not asyncio.run(settle(given.config, given.gone)))
    asyncio.run(provision(given.config))
