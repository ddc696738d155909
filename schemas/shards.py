"""Shards: the part of a stage's items that one worker computes, and the record of one that is committed."""

import re
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from schemas.manifest import FileEntry, RoleCost, StageKey

_SHARD = re.compile(r"(\d{1,4})/(\d{1,4})")


class Shard(BaseModel):
    """One part of a stage's items: number 1 to `count`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """The shard that people and deployments write as `3/8`.

        Raises:
            ValueError: it is written otherwise, or there is no such shard.
        """
        match = _SHARD.fullmatch(text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise ValueError(f"shard: '{text}' is no shard; write it as 3/8, from 1/8 to 8/8")
        return cls(number=int(match[1]), count=int(match[2]))

    @classmethod
    def all(cls, count: int) -> list[Self]:
        """All shards of a stage."""
        return [cls(number=number, count=count) for number in range(1, count + 1)]

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @property
    def name(self) -> str:
        """Of its folder: `0003-of-0008`."""
        return f"{self.number:04d}-of-{self.count:04d}"

    def of(self, key: StageKey) -> StageKey:
        """The key under which its journal, log, lock and progress are kept: the stage's, its own name behind a dot."""
        return key.model_copy(update={"stage": f"{key.stage}.{self.name}"})


class ShardManifest(BaseModel):
    """The truth about one committed shard. A folder without a valid manifest counts as absent."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: StageKey
    folder: str = Field(
        description="name of the folder that the stage will commit: its fingerprint and attempt"
    )
    shard: Shard
    files: list[FileEntry]
    items: int = Field(description="items that were dealt to it")
    faults: int = Field(description="rows that an engine or an environment failed")
    roles: dict[str, RoleCost] = Field(description="what each role's requests cost")
    tokens: int
    started_at: str = Field(description="UTC, ISO 8601")
    seconds: float
    machine: str
    prefect_flow_run_id: str | None = None
