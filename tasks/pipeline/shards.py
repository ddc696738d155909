"""Computing a stage's shards, and merging them.

A shard runs the stage's function up to its items, works on those that are dealt to it, and commits their rows. The
merging run is an ordinary run of the stage that finds the results of all items in the shards. So a stage with shards
and one without commit the same tables.
"""

import platform
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from schemas.config import Config
from schemas.manifest import FileEntry, RoleCost
from schemas.shards import Shard, ShardManifest
from storage.committed import Unreachable
from storage.files import full_disk_named, sha256_file
from storage.locks import StageBusy
from storage.shards import CommittedShard, Shards
from storage.store import Store, StoreError
from tasks.pipeline.commit import StageRun, begin_run
from tasks.pipeline.decision import Decision
from tasks.pipeline.faults import is_fault, refuse_outage
from tasks.pipeline.registry import STAGES
from tasks.pipeline.workplace import workplace
from tasks.runtime.collector import collector_paused
from tasks.runtime.dealing import Merging, ShardDone
from tasks.runtime.item_tables import ItemTables
from tasks.runtime.progress import Report
from tasks.runtime.stage import Inputs, Stage, StageFailed, StageInterrupted


def shards_of(store: Store, config: Config, decision: Decision, count: int | None = None) -> Shards | None:
    """The shards of a stage that is to be computed; None where its items are not dealt out.

    Args:
        store: the artifact store.
        config: says how many shards there are.
        decision: to compute the stage.
        count: how many, where the caller was told.
    """
    count = count or config.pools.shards
    if count == 1 or STAGES[decision.key.stage].item is None:
        return None
    begun = begin_run(store, decision.fingerprint_inputs, attempt=decision.attempt)
    return Shards(store, decision.key, begun.folder, count)


async def carry_out_shard(
    store: Store,
    config: Config,
    decision: Decision,
    shard: Shard,
    *,
    report: Report | None = None,
    flow_run: str | None = None,
) -> CommittedShard:
    """Compute and commit one shard of a stage, or find it committed.

    Args:
        store: the artifact store.
        config: the resolved configuration that the decision was made with.
        decision: to compute the stage.
        shard: which.
        report: told of progress.
        flow_run: id of the Prefect run that computes it.

    Raises:
        StageFailed, StageInterrupted, StoreError: as `tasks.pipeline.runner.carry_out`.
        ValueError: the stage's items can't be dealt out.
    """
    shards = shards_of(store, config, decision, shard.count)
    if shards is None:
        raise ValueError(f"{decision.key.stage} has no shards; run it without one")
    try:
        check_inputs(store, decision.inputs)
        return await _compute(store, config, decision, shards, shard, report, flow_run)
    except (StageBusy, Unreachable) as passing:
        raise StageInterrupted(str(passing)) from passing


async def compute_missing(
    store: Store, config: Config, decision: Decision, shards: Shards, report: Report | None
) -> list[CommittedShard]:
    """All shards of a stage. Those that are missing or damaged are computed here, one after the other."""
    return [await _compute(store, config, decision, shards, shard, report, None) for shard in shards.all]


async def _compute(
    store: Store,
    config: Config,
    decision: Decision,
    shards: Shards,
    shard: Shard,
    report: Report | None,
    flow_run: str | None,
) -> CommittedShard:
    begun, stage = StageRun(decision.fingerprint_inputs, decision.fingerprint, 1), STAGES[decision.key.stage]
    tables = ItemTables(stage.item or type(None))
    with store.computing(shard.of(decision.key)):
        whole, damage = _whole(shards, shard)
        if whole is not None:
            return whole
        with workplace(store, config, decision, shards.folder, report, shard) as place:
            if damage is not None:
                place.log.warning(
                    "%s; the shard is computed again from the requests that were answered", damage
                )
                shards.discard(shard)
            try:
                await place.compute()
            except ShardDone as done:
                results = done.results
            else:
                raise StageFailed(f"{stage.name} dealt out no items, though its `item` says so")
            rows = tables.rows(results)
            refuse_outage(f"{stage.name}, shard {shard}", rows, config.faults.max_failed_share)
            place.log.info("shard %s: %d items in %.1f s", shard, len(results), begun.seconds)
            with full_disk_named(place.folder):
                tables.write(place.folder, results)
                files = [
                    FileEntry(path=p.name, bytes=p.stat().st_size, sha256=sha256_file(p))
                    for p in sorted(place.folder.iterdir())
                ]
                shutil.copyfile(place.said, place.folder / "stage.log")
                manifest = ShardManifest(
                    key=decision.key,
                    folder=shards.folder,
                    shard=shard,
                    files=files,
                    items=len(results),
                    faults=sum(is_fault(row) for made in rows.values() for row in made),
                    roles=place.ctx.roles.costs,
                    tokens=place.ctx.roles.tokens,
                    started_at=begun.started.isoformat(),
                    seconds=round(begun.seconds, 3),
                    machine=platform.node(),
                    prefect_flow_run_id=flow_run,
                )
                committed = shards.commit(place.folder, manifest)
        place.said.unlink(missing_ok=True)
        return committed


def _whole(shards: Shards, shard: Shard) -> tuple[CommittedShard | None, StoreError | None]:
    """A shard that is committed and whole, or what is wrong with the one that is there."""
    try:
        found = shards.find(shard)
    except Unreachable:
        raise
    except StoreError as broken:
        return None, broken
    damage = None if found is None else next(found.faults(), None)
    return (found, None) if damage is None else (None, damage)


def merging(stage: Stage, parts: Sequence[CommittedShard]) -> Merging | None:
    """The results of all shards; None where there are none."""
    if not parts or stage.item is None:
        return None
    tables = ItemTables(stage.item)
    with collector_paused():
        return Merging({number: made for part in parts for number, made in tables.read(part.path).items()})


def discard_faulty(parts: Sequence[CommittedShard]) -> None:
    """Remove the shards that hold faults: too many in all for the stage, though no shard had too many."""
    for part in parts:
        if part.manifest.faults:
            part.discard()


def with_shards(run: StageRun, parts: Sequence[CommittedShard]) -> StageRun:
    """A stage's computation with the time that its shards took."""
    spans = [(datetime.fromisoformat(part.manifest.started_at), part.manifest.seconds) for part in parts]
    return replace(run, earlier=tuple(spans))


def total_costs(own: Mapping[str, RoleCost], parts: Sequence[CommittedShard]) -> dict[str, RoleCost]:
    """What each role's requests cost in the merging run and in the shards."""
    all_costs = [own, *(part.manifest.roles for part in parts)]
    return {role: sum((c[role] for c in all_costs if role in c), RoleCost()) for c in all_costs for role in c}


def check_inputs(store: Store, inputs: Inputs) -> None:
    """Bring what a stage reads to where it is read, and check that it is what was committed.

    Raises:
        StoreError: a file is missing or damaged; it is named.
    """
    for table, parts in inputs.tables.items():
        for part in parts:
            part.check(content=True, below=part.manifest.tables[table].file)
    for use, part in inputs.files.items():
        part.check(content=True, below=f"{use}.pt")
    for folder in {adapter.path for adapter in inputs.adapters.values() if adapter}:
        store.at(folder.parent).check(content=True, below=f"{folder.name}/")
