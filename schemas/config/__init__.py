"""The run configuration: every field, its default and its effect. docs/configuration.md is generated from it."""

import math
from typing import Literal

from pydantic import Field, model_validator

from schemas.config.base import Role, Section
from schemas.config.engines import EngineSection, LoraSection, ModelSection, ServeSection
from schemas.config.experience import EvaluationSection, ReplaySection, RolloutSection
from schemas.config.roles import EnvironmentSection, RoleSection, RolesSection
from schemas.config.training import (
    AnchorSection,
    BackupSection,
    CorrectionSection,
    FineTuningSection,
    ImprovementSection,
    TargetSection,
    TrainerSection,
    TrainingSection,
    WarmStartSection,
)

__all__ = [
    "WITH_CRITIC",
    "Algorithm",
    "AnchorSection",
    "BackupSection",
    "Config",
    "CorrectionSection",
    "EngineSection",
    "EnvironmentSection",
    "EvaluationSection",
    "FineTuningSection",
    "ImprovementSection",
    "LoraSection",
    "ModelSection",
    "PoolsSection",
    "ReplaySection",
    "Role",
    "RoleSection",
    "RolesSection",
    "RolloutSection",
    "ServeSection",
    "TargetSection",
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
        True, description="both GPU pools use one device: a global concurrency limit runs one of their stages at a "
        "time"
    )  # fmt: skip


Algorithm = Literal["nlac", "rft", "react", "self_distillation", "nlql"]
WITH_CRITIC: frozenset[Algorithm] = frozenset({"nlac", "nlql"})


class Config(Section):
    """Everything that determines a run."""

    run: str = Field(
        "default",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$",
        description="name of the run, a folder under the data root",
    )
    seed: int = Field(0, ge=0, description="root of every random stream")
    algorithm: Algorithm = Field(
        "nlac", description="nlac, or a baseline. rft: fine-tune the policy on the actions of successful episodes; "
        "react: evaluate the model as it is; self_distillation: refine actions from Monte-Carlo rollouts instead of "
        "predicted futures; nlql: distil the sampled action that the evaluator most probably calls optimal. A run has "
        "one algorithm"
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
    evaluation: EvaluationSection = EvaluationSection()
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
        if self.improvement.from_iteration and (self.parameters == "separate" or not self.has_critic):
            raise ValueError(
                "improvement.from_iteration: only algorithms nlac and nlql with shared parameters can train the critic "
                "alone; set it to 0"
            )
        if self.rollout.source == "none" and self.replay.max_age is not None:
            raise ValueError("replay.max_age: imported transitions don't age (rollout: none); leave it empty")
        if self.algorithm == "nlql" and self.improvement.action == "replayed":
            raise ValueError("improvement.action: algorithm nlql samples its actions; set it to fresh")
        for name in ("critic", "policy"):
            rows, mix = getattr(self, name).batch_rows, self.mix(name)
            if self.anchor.chat_share and round(rows * mix) + round(rows * self.anchor.chat_share) >= rows:
                raise ValueError(
                    f"anchor.chat_share: with {name}.mix {mix:g} and {name}.batch_rows {rows} no row of the stage's "
                    f"own is left in a batch; lower anchor.chat_share or {name}.mix"
                )
        if self.parameters == "separate":
            for name in ("critic", "policy"):
                if getattr(self, name).mix:
                    raise ValueError(
                        f"{name}.mix: rows of the other role belong to shared parameters only; remove it"
                    )
        return self

    @property
    def has_critic(self) -> bool:
        """Whether the algorithm trains a successor."""
        return self.algorithm in WITH_CRITIC

    @property
    def futures(self) -> int:
        """k, with its default resolved: how many futures (or Monte-Carlo rollouts) a critique reads."""
        return self.improvement.futures or (4 if self.algorithm == "self_distillation" else 1)

    def mix(self, stage: Literal["critic", "policy", "warm_start"]) -> float:
        """Share of the other role's rows in a batch, with its default resolved; 0 without a critic."""
        if not self.has_critic or stage == "warm_start":
            return 0.0
        share = getattr(self, stage).mix
        return float(share) if share is not None else (0.25 if self.parameters == "shared" else 0.0)

    def target_moved(self, steps: int) -> float:
        """How far the target has moved towards the trained parameters after `steps` updates: 1 - (1 - tau)^steps."""
        return 1.0 - math.pow(1.0 - self.target.tau, steps)
