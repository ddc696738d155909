"""The run configuration: every field, its default and its effect. docs/configuration.md is generated from it."""

import math
from typing import Literal

from pydantic import Field, PositiveInt, model_validator

from schemas.config.base import Player, Role, Section
from schemas.config.engines import EngineSection, LoraSection, ModelSection, ServeSection
from schemas.config.experience import EvaluationSection, ReplaySection, RolloutSection
from schemas.config.faults import FaultsSection
from schemas.config.roles import UNTRAINED, EnvironmentSection, RoleSection, RolesSection
from schemas.config.tracking import TrackingSection
from schemas.config.training import (
    AnchorSection,
    BackupSection,
    CorrectionSection,
    FineTuningSection,
    ImprovementSection,
    PolicyGradientSection,
    SoftQSection,
    TargetSection,
    TrainerSection,
    TrainingSection,
    WarmStartSection,
)

__all__ = [
    "AnchorSection",
    "BackupSection",
    "Config",
    "CorrectionSection",
    "EngineSection",
    "EnvironmentSection",
    "EvaluationSection",
    "FaultsSection",
    "FineTuningSection",
    "ImprovementSection",
    "LoraSection",
    "ModelSection",
    "Player",
    "PolicyGradientSection",
    "PoolsSection",
    "ReplaySection",
    "Role",
    "RoleSection",
    "RolesSection",
    "RolloutSection",
    "ServeSection",
    "SoftQSection",
    "TargetSection",
    "TrackingSection",
    "TrainerSection",
    "TrainingSection",
    "WarmStartSection",
]


class PoolsSection(Section):
    """Prefect work pools of the stages."""

    orchestration: str = Field("nlac-orchestration", description="pool of the iteration and training flows")
    inference: str = Field("nlac-inference", description="GPU pool of the stages that generate")
    training: str = Field("nlac-training", description="GPU pool of the stages that train")
    shared_gpu: bool = Field(
        True, description="both GPU pools use one device: a global concurrency limit of each host runs one of their "
        "stages at a time"
    )  # fmt: skip
    shards: PositiveInt = Field(
        1, description="parts into which the items of a stage that generates are dealt; any worker of the inference "
        "pool takes one at a time"
    )  # fmt: skip


class Config(Section):
    """Everything that determines a run."""

    run: str = Field(
        "default",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$",
        description="name of the run, a folder under the data root",
    )
    seed: int = Field(0, ge=0, description="root of every random stream")
    algorithm: str = Field(
        "nlac", description="nlac, or a baseline of `tasks/algorithms`. rft: fine-tune the policy on the actions of "
        "successful episodes; react: evaluate the model as it is; self_distillation: refine actions from Monte-Carlo "
        "rollouts instead of predicted futures; nlql: distil the sampled action that the evaluator most probably calls "
        "optimal; refiner_alone: distil the refiner's first proposal, without a critic; grpo: a policy gradient over "
        "groups of episodes; ppo: one with a value head; sac: a scalar critic in place of the language critic; nlrl: "
        "choose among actions by what rollouts of each amount to. A run has one algorithm"
    )  # fmt: skip
    parameters: Literal["shared", "separate"] = Field(
        "shared", description="shared: one theta for policy and critic (the paper's form); separate: two adapters over "
        "one base"
    )  # fmt: skip
    model: ModelSection = ModelSection()
    engines: dict[str, EngineSection] = Field(
        {"local": EngineSection()}, description="inference backends by name"
    )
    roles: RolesSection = RolesSection()
    environment: EnvironmentSection = EnvironmentSection()
    rollout: RolloutSection = RolloutSection()
    replay: ReplaySection = ReplaySection()
    correction: CorrectionSection = CorrectionSection()
    critic: TrainingSection = TrainingSection()
    policy: TrainingSection = TrainingSection()
    backup: BackupSection = BackupSection()
    target: TargetSection = TargetSection()
    anchor: AnchorSection = AnchorSection()
    warm_start: WarmStartSection = WarmStartSection()
    trainer: TrainerSection = TrainerSection()
    improvement: ImprovementSection = ImprovementSection()
    policy_gradient: PolicyGradientSection = PolicyGradientSection()
    soft_q: SoftQSection = SoftQSection()
    evaluation: EvaluationSection = EvaluationSection()
    faults: FaultsSection = FaultsSection()
    tracking: TrackingSection = TrackingSection()
    pools: PoolsSection = PoolsSection()

    @model_validator(mode="after")
    def _consistent(self) -> "Config":
        played = {f"roles.{role}": getattr(self.roles, role) for role in RolesSection.model_fields}
        if self.environment.model is not None:
            played["environment.model"] = self.environment.model
        for place, section in played.items():
            if section.engine not in self.engines:
                known = ", ".join(sorted(self.engines))
                raise ValueError(
                    f"{place}.engine: no engine '{section.engine}' under engines (there are: {known})"
                )
        if self.rollout.source == "none" and self.replay.max_age is not None:
            raise ValueError("replay.max_age: imported transitions don't age (rollout: none); leave it empty")
        if self.parameters == "separate":
            for name in ("critic", "policy"):
                if getattr(self, name).mix:
                    raise ValueError(
                        f"{name}.mix: rows of the other role belong to shared parameters only; remove it"
                    )
        return self

    def role(self, player: Player) -> RoleSection:
        """How a role, or the environment model, is played.

        Raises:
            ValueError: no environment model is configured.
        """
        if player != "environment_model":
            section: RoleSection = getattr(self.roles, player)
            return section
        if self.environment.model is None:
            raise ValueError("environment.model is not configured")
        return self.environment.model

    def is_frozen(self, player: Player) -> bool:
        """Whether the warm-started model plays a role, whatever has been trained since; raises as `role`."""
        own = self.role(player).frozen
        return own if own is not None else self.warm_start.file is not None and player in UNTRAINED

    def target_moved(self, steps: int) -> float:
        """How far the target has moved towards the trained parameters after `steps` updates: 1 - (1 - tau)^steps."""
        return 1.0 - math.pow(1.0 - self.target.tau, steps)
