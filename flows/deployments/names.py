"""Names and tags of flow runs: by deployment, run and iteration.

A name says what a flow run does; the UI filters by its tags. Commands that only read these load no Prefect.
"""

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
