"""What an iteration would do: its stages, requests and tokens, and their time, before anything runs."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from schemas.config import Config
from schemas.rows import TrainingStep
from storage.committed import Committed
from storage.store import Store
from tasks.algorithms import algorithm_of
from tasks.pipeline.registry import STAGES, stages_of
from tasks.runtime.stage import Bound


@dataclass(frozen=True)
class PlanRow:
    """At most what one stage of an iteration costs, and the work pool it runs on.

    Attributes:
        stage: its name.
        pool: of workers.
        bound: requests and tokens.
        seconds: at a known rate; None where none is known.
    """

    stage: str
    pool: str
    bound: Bound
    seconds: float | None


def plan(
    config: Config,
    measured: Mapping[str, float] | None = None,
    stated: Mapping[str, float | None] | None = None,
) -> list[PlanRow]:
    """The stages of iteration 0 with upper bounds; caps on lengths are seldom reached.

    Args:
        config: of the run.
        measured: stage -> tokens per second.
        stated: "inference" or "training" -> tokens per second of stages that were not measured.
    """
    return [_row(config, name, measured or {}, stated or {}) for name in stages_of(config, 0)]


def run_seconds(
    config: Config, iterations: int, measured: Mapping[str, float], stated: Mapping[str, float | None]
) -> float:
    """What the first iterations of a run take at most, evaluations in those that have one included; see `plan`.

    Stages whose rate is not known count nothing.
    """
    counted = Counter(name for iteration in range(iterations) for name in stages_of(config, iteration))
    rows = {name: _row(config, name, measured, stated) for name in counted}
    return sum(counted[name] * (row.seconds or 0.0) for name, row in rows.items())


def _row(
    config: Config, name: str, measured: Mapping[str, float], stated: Mapping[str, float | None]
) -> PlanRow:
    stage = STAGES[name]
    bound = stage.bound(config, algorithm_of(config))
    if stage.item is not None and config.pools.shards > 1:
        bound = replace(bound, note=f"{bound.note}, dealt out to {config.pools.shards} shards")
    rate = measured.get(name) or stated.get(stage.pool)
    return PlanRow(name, getattr(config.pools, stage.pool), bound, bound.tokens / rate if rate else None)


def measured_rates(store: Store, run: str) -> dict[str, float]:
    """Tokens per second of each stage that the run has committed, over all its iterations.

    Of stages that train these are label tokens, as in their bounds.
    """
    made = [
        found
        for iteration in (store.iterations(run) if run in store.runs() else [])
        for name in STAGES
        if (found := store.committed(run, name, iteration)) is not None
    ]
    rates = {}
    for name in {committed.manifest.stage for committed in made}:
        of_stage = [committed for committed in made if committed.manifest.stage == name]
        tokens = sum(map(_tokens, of_stage))
        seconds = sum(committed.manifest.seconds for committed in of_stage)
        if tokens and seconds:
            rates[name] = tokens / seconds
    return rates


def _tokens(committed: Committed) -> int:
    if TrainingStep.TABLE not in committed.manifest.tables:
        return committed.manifest.tokens
    return int(committed.scan(TrainingStep.TABLE).select("label_tokens").sum().collect().item())
