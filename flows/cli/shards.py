"""Where the shards of a running stage stand: done, running, late."""

import statistics

from pydantic import BaseModel, ConfigDict

from flows.deployments.names import run_name
from flows.deployments.progress import ProgressFile
from schemas.manifest import StageKey
from schemas.shards import Shard
from storage.shards import committed_shards
from storage.store import Store

LATE = 2.0
"""A shard is late when it has run for so many times the median of those that are done."""


class ShardsStanding(BaseModel):
    """The shards of a running stage.

    Attributes:
        count: how many there are.
        done: how many are committed.
        median_seconds: of those.
        running: the others that run, with their seconds so far.
        late: those of them that are late.
    """

    model_config = ConfigDict(frozen=True)

    count: int
    done: int
    median_seconds: float | None
    running: dict[str, float]
    late: list[str]

    @property
    def line(self) -> str:
        """In a line."""
        late = ", ".join(f"{shard} runs for {self.running[shard]:.0f} s" for shard in self.late)
        usual = f" (half of them took {self.median_seconds:.0f} s or less)" if self.median_seconds else ""
        said = f"{self.done} of {self.count} shards done{usual}, {len(self.running)} running"
        return f"{said}, late: {late}" if late else said


def shards_standing(
    store: Store, key: StageKey, count: int, started: dict[str, float], now: float
) -> ShardsStanding:
    """Where the shards of a stage stand.

    Args:
        store: the artifact store.
        key: the stage.
        count: how many shards it has.
        started: names of Prefect's runs that run, with their beginnings in seconds since the epoch. Of a shard that no
            run has, its progress file tells.
        now: seconds since the epoch.
    """
    done = {made.manifest.shard: made.manifest.seconds for made in committed_shards(store, key, count)}
    running: dict[str, float] = {}
    for shard in (shard for shard in Shard.all(count) if shard not in done):
        begun = started.get(run_name(key.stage, key.run, key.iteration, shard))
        begun = _told(store, shard.of(key)) if begun is None else begun
        if begun is not None:
            running[str(shard)] = max(0.0, now - begun)
    usual = statistics.median(done.values()) if done else None
    late = [shard for shard, seconds in running.items() if usual is not None and seconds > LATE * usual]
    return ShardsStanding(count=count, done=len(done), median_seconds=usual, running=running, late=late)


def _told(store: Store, key: StageKey) -> float | None:
    """When a shard began, by its progress file."""
    found = ProgressFile.read(store.root, key.run, key.stage, 0.0)
    if found is None or found.iteration != key.iteration:
        return None
    return ProgressFile.path(store.root, key.run, key.stage).stat().st_mtime - found.state.seconds
