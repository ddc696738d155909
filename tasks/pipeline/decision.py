"""Where a stage finds its inputs, and whether its committed output still holds.

`tasks.pipeline.runner` carries a decision out.
"""

from dataclasses import dataclass

from schemas.config import Config
from schemas.manifest import FingerprintInputs, StageKey
from storage.store import Committed, Store, StoreError
from tasks.algorithms import algorithm_of
from tasks.environments.logged import NAME as LOGGED
from tasks.pipeline.fingerprint_inputs import collect_fingerprint_inputs, differences, fingerprint_of
from tasks.pipeline.registry import STAGES
from tasks.runtime.lineage import Resolver
from tasks.runtime.role_client import FROZEN
from tasks.runtime.stage import Inputs, StageFailed
from tasks.stages import warm_start


@dataclass(frozen=True)
class Decision:
    """Whether a stage's committed output still holds. A process decides once and hands the decision on.

    Attributes:
        key: the stage.
        reuse: its output holds.
        reasons: why it does not, or that it does; one line each.
        fingerprint: of what the stage would compute now.
        committed: what is there with that fingerprint, or what is current.
        inputs: what the stage reads.
        fingerprint_inputs: what determines its output under the given configuration.
        attempt: number of the attempt that would compute it, chosen before the store was asked for an output. So a
            process that computes the same in the meantime takes this very number, and no output is committed twice.
    """

    key: StageKey
    reuse: bool
    reasons: tuple[str, ...]
    fingerprint: str
    committed: Committed | None
    inputs: Inputs
    fingerprint_inputs: FingerprintInputs
    attempt: int


def decide(
    store: Store, config: Config, stage: str, iteration: int, *, force: bool = False, frozen: bool = True
) -> Decision:
    """Whether to reuse or to compute a stage.

    Args:
        store: the artifact store.
        config: the resolved configuration.
        stage: its name.
        iteration: its iteration.
        force: compute whatever is there.
        frozen: a committed stage keeps the configuration it was computed with; differences of `config`
            don't count.

    Raises:
        StageFailed: an input is not committed yet.
        StoreError: `current.json` or the committed manifest is broken.
    """
    key = StageKey(stage=stage, run=config.run, iteration=iteration)
    inputs = resolve_inputs(store, config, stage, iteration)
    given = collect_fingerprint_inputs(STAGES[stage], config, iteration, inputs)
    now = given
    attempt = store.next_attempt(key, fingerprint_of(given))
    try:
        current = store.committed(config.run, stage, iteration)
    except StoreError:
        if not force:
            raise
        current = None
    if current is not None and frozen:
        now = given.model_copy(update={"config": current.manifest.fingerprint_inputs.config})
    fingerprint = fingerprint_of(now)

    def decided(reuse: bool, reasons: tuple[str, ...], committed: Committed | None) -> Decision:
        return Decision(key, reuse, reasons, fingerprint, committed, inputs, given, attempt)

    if force:
        return decided(False, ("force: recomputed whatever is there",), current)
    if current is None:
        found = store.find(key, fingerprint)
        if found is not None:
            return decided(True, ("committed before, and nothing changed",), found)
        return decided(False, ("not committed yet",), None)
    if current.manifest.fingerprint == fingerprint:
        return decided(True, ("nothing it depends on has changed",), current)
    changed = tuple(differences(current.manifest.fingerprint_inputs, now))
    found = store.find(key, fingerprint)
    if found is not None:
        return decided(True, ("an earlier output fits again", *changed), found)
    return decided(False, changed, current)


def resolve_inputs(store: Store, config: Config, stage: str, iteration: int) -> Inputs:
    """A stage's inputs, as committed.

    Raises:
        StageFailed: one of them is not committed yet; it is named. Or the stage is none of the algorithm's.
    """
    algorithm = algorithm_of(config)
    if stage == warm_start.STAGE.name:
        warm_start.refuse_unfit(config, iteration)
    elif stage not in algorithm.stages:
        raise StageFailed(
            f"{stage} is no stage of algorithm {algorithm.name} (its stages: {', '.join(algorithm.stages)}); run one "
            "of those, or another run with another algorithm"
        )
    if stage == "rollout":
        _refuse_playing(store, config, iteration)

    def committed(needed: str, at: int) -> Committed:
        found = store.committed(config.run, needed, at)
        if found is None:
            raise StageFailed(
                f"{stage} of iteration {iteration} needs {needed} of iteration {at} of run '{config.run}', which is "
                f"not committed; run it first: prefect deployment run nlac/{needed} -p iteration={at} "
                f"-p run={config.run}"
            )
        return found

    def rollouts_of(run: str) -> list[Committed]:
        found = (store.committed(run, "rollout", number) for number in store.iterations(run))
        return [made for made in found if made is not None]

    resolver = Resolver(config, algorithm, iteration, committed, rollouts_of)
    inputs = STAGES[stage].inputs(resolver)
    if any(map(config.is_frozen, STAGES[stage].roles)):
        inputs.adapters[FROZEN] = resolver.base()
    return inputs


def is_import(rollout: Committed) -> bool:
    """Whether a committed rollout was imported (`tasks.logs`), not played."""
    return LOGGED in rollout.manifest.fingerprint_inputs.config


def _refuse_playing(store: Store, config: Config, iteration: int) -> None:
    """Refuse stage rollout in a run of imported episodes."""
    if config.rollout.source == "none":
        raise StageFailed(
            "rollout: none, so there is no stage rollout; episodes come from `nlac import` (or set rollout.source to "
            "environment)"
        )
    try:
        before = store.committed(config.run, "rollout", iteration)
    except StoreError:
        return  # a broken manifest does not tell an import from a played rollout
    if before is not None and is_import(before):
        raise StageFailed(
            f"iteration {iteration} of run '{config.run}' holds imported episodes, which playing would replace; train "
            "on them with a configuration that has rollout: none (configs/examples/logged.yaml), or play in another run"
        )
