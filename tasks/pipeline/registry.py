"""The stages of each algorithm, where they find their inputs, and whether their output is there already.

Computing and committing it: `tasks.pipeline.runner`.
"""

from dataclasses import dataclass

from schemas.config import Algorithm, Config
from storage.store import Committed, Store, StoreError
from tasks.environments.logged import NAME as LOGGED
from tasks.pipeline.fingerprint_inputs import collect_fingerprint_inputs, differences, fingerprint_of
from tasks.runtime.stage import Inputs, Resolver, Stage, StageFailed
from tasks.stages import (
    bellman_targets,
    cot_correction,
    critic_sft,
    critique,
    evaluation,
    policy_distillation,
    refinement,
    replay_draw,
    rollout,
    warm_start,
)

STAGES: dict[str, Stage] = {
    module.STAGE.name: module.STAGE
    for module in (
        warm_start, rollout, replay_draw, bellman_targets, cot_correction, critic_sft, critique, refinement,
        policy_distillation, evaluation,
    )
}  # fmt: skip

_ACTOR_CRITIC = (
    "rollout", "bellman-targets", "cot-correction", "critic-sft", "critique", "refinement", "policy-distillation",
    "evaluation",
)  # fmt: skip

ALGORITHMS: dict[Algorithm, tuple[str, ...]] = {
    "nlac": _ACTOR_CRITIC,
    "nlql": _ACTOR_CRITIC,
    "self_distillation": (
        "rollout", "replay-draw", "critique", "refinement", "policy-distillation", "evaluation",
    ),
    "rft": ("rollout", "policy-distillation", "evaluation"),
    "react": ("evaluation",),
}  # fmt: skip
"""The stages of each algorithm; what they read then is in their own `inputs`."""

IMPROVEMENT = {"critique", "refinement", "policy-distillation"}


@dataclass(frozen=True)
class Decision:
    """Whether a stage's committed output still holds.

    Attributes:
        reuse: it does.
        reasons: why it does not, or that it does; one line each.
        fingerprint: of what the stage would compute now.
        committed: what is there with that fingerprint, or what is current.
    """

    reuse: bool
    reasons: tuple[str, ...]
    fingerprint: str
    committed: Committed | None


def stages_of(config: Config, iteration: int) -> list[str]:
    """The stages of an iteration, in order: before iteration 0 a warm start, if one is configured; then those of the
    algorithm, rollout where anything is played, improvement from its first iteration on, evaluation every
    `evaluation.every`-th one."""
    left_out = {"rollout"} if config.rollout.source == "none" else set()
    if (iteration + 1) % config.evaluation.every:
        left_out.add("evaluation")
    if iteration < config.improvement.from_iteration:
        left_out |= IMPROVEMENT
    first = [warm_start.STAGE.name] if config.warm_start.file and iteration == 0 else []
    return first + [name for name in ALGORITHMS[config.algorithm] if name not in left_out]


def is_import(rollout: Committed) -> bool:
    """Whether a committed rollout was imported (`tasks.logs`), not played."""
    return LOGGED in rollout.manifest.fingerprint_inputs.config


def _imported(store: Store, run: str, iteration: int) -> bool:
    """Whether an iteration's rollout is an import; one whose manifest is broken can't be told from a played one."""
    try:
        before = store.committed(run, "rollout", iteration)
    except StoreError:
        return False
    return before is not None and is_import(before)


def resolve_inputs(store: Store, config: Config, stage: str, iteration: int) -> Inputs:
    """A stage's inputs, as committed.

    Raises:
        StageFailed: one of them is not committed yet; it is named. Or the stage is none of the algorithm's.
    """
    if stage == warm_start.STAGE.name:
        warm_start.refuse_unfit(config, iteration)
    elif stage not in ALGORITHMS[config.algorithm]:
        raise StageFailed(
            f"{stage} is no stage of algorithm {config.algorithm} (its stages: "
            f"{', '.join(ALGORITHMS[config.algorithm])}); run one of those, or another run with another algorithm"
        )

    if stage == "rollout" and config.rollout.source == "none":
        raise StageFailed(
            "rollout: none, so there is no stage rollout; episodes come from `nlac import` (or set rollout.source to "
            "environment)"
        )
    if stage == "rollout" and _imported(store, config.run, iteration):
        raise StageFailed(
            f"iteration {iteration} of run '{config.run}' holds imported episodes, which playing would replace; train "
            "on them with a configuration that has rollout: none (configs/examples/logged.yaml), or play in another run"
        )

    def committed(needed: str, at: int) -> Committed:
        found = store.committed(config.run, needed, at)
        if found is None:
            raise StageFailed(
                f"{stage} of iteration {iteration} needs {needed} of iteration {at} of run '{config.run}', which is "
                f"not committed; run it first: prefect deployment run nlac/{needed} -p iteration={at}"
            )
        return found

    def rollouts_of(run: str) -> list[Committed]:
        found = (store.committed(run, "rollout", number) for number in store.iterations(run))
        return [made for made in found if made is not None]

    return STAGES[stage].inputs(Resolver(config, iteration, committed, rollouts_of))


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
    inputs = resolve_inputs(store, config, stage, iteration)
    now = collect_fingerprint_inputs(STAGES[stage], config, iteration, inputs)
    try:
        current = store.committed(config.run, stage, iteration)
    except StoreError:
        if not force:
            raise
        current = None
    if current is not None and frozen:
        now = now.model_copy(update={"config": current.manifest.fingerprint_inputs.config})
    fingerprint = fingerprint_of(now)
    if force:
        return Decision(False, ("force: recomputed whatever is there",), fingerprint, current)
    if current is None:
        found = store.find(config.run, stage, iteration, fingerprint)
        if found is not None:
            return Decision(True, ("committed before, and nothing changed",), fingerprint, found)
        return Decision(False, ("not committed yet",), fingerprint, None)
    if current.manifest.fingerprint == fingerprint:
        return Decision(True, ("nothing it depends on has changed",), fingerprint, current)
    changed = tuple(differences(current.manifest.fingerprint_inputs, now))
    found = store.find(config.run, stage, iteration, fingerprint)
    if found is not None:
        return Decision(True, ("an earlier output fits again", *changed), fingerprint, found)
    return Decision(False, changed, fingerprint, current)
