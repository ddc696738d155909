"""Labels and losses, batches and steps."""

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from schemas.config.base import NonNegative, Section, Share


class CorrectionSection(Section):
    """Rewrites thoughts so that they assert nothing the student can't see."""

    enabled: bool = Field(True, description="false: train on thoughts as they are (an ablation)")
    ngram: int = Field(
        4, ge=2, description="number of consecutive words from privileged text that count as a leak (or half as many "
        "content words in any order; docs/leaks.md)"
    )  # fmt: skip
    threshold: Share = Field(0.0, description="largest share of leaking words that passes")
    attempts: PositiveInt = Field(2, description="rewrites tried before giving up")
    reasoning_chars: PositiveInt = Field(
        4000, description="longest hidden chain of thought in a label, in characters; of a longer one the end is kept, "
        "which leads to the answer"
    )  # fmt: skip
    on_failure: Literal["drop_thought", "drop_row"] = Field(
        "drop_thought", description="if no rewrite passes: keep the row without its thought, or drop the row"
    )


class FineTuningSection(Section):
    """Batches and steps of fine-tuning."""

    epochs: PositiveInt = Field(1, description="passes over the stage's own rows")
    batch_rows: PositiveInt = Field(16, description="rows per optimizer step, all roles together")
    micro_batch_rows: PositiveInt = Field(
        2, description="rows per micro-batch; gradients are accumulated over the batch"
    )
    learning_rate: PositiveFloat = Field(2e-4, description="peak rate of AdamW")
    warmup_steps: int = Field(0, ge=0, description="optimizer steps of linear warm-up")
    weight_decay: NonNegative = Field(0.0, description="AdamW weight decay")
    clip_norm: PositiveFloat = Field(1.0, description="global gradient norm cap")

    def lr_scale(self, iteration: int) -> float:
        """Share of learning_rate in an iteration."""
        return 1.0


class TrainerSection(Section):
    """How the training stages compute. It changes their results by rounding alone, so changing it makes no stage
    stale."""

    processes: PositiveInt = Field(
        1, description="processes of a training stage on each host, one per GPU, started by torchrun; they share each "
        "step's rows"
    )  # fmt: skip
    hosts: PositiveInt = Field(
        1, description="hosts that train together (docs/training.md, several hosts); NLAC_RENDEZVOUS says where they "
        "meet, and all but the one that runs the stage run nlac join-training"
    )  # fmt: skip
    shard: Literal["none", "fsdp"] = Field(
        "none", description="fsdp: spread the layers' weights, gradients and optimizer state over the processes "
        "(torch's fully_shard); none: each process holds all of them"
    )  # fmt: skip
    gradient_checkpointing: bool = Field(
        False, description="keep only each layer's input and recompute the rest in the backward pass: about a third "
        "more computation for much less memory"
    )  # fmt: skip
    checkpoint_steps: int = Field(
        50, ge=0, description="a killed stage resumes from the last multiple of this many optimizer steps; 0: from the "
        "beginning"
    )  # fmt: skip

    @model_validator(mode="after")
    def _shards_over_several(self) -> "TrainerSection":
        if self.shard == "fsdp" and self.world == 1:
            raise ValueError("shard: fsdp needs several processes; set processes to the number of GPUs")
        return self

    @property
    def world(self) -> int:
        """Processes of all hosts."""
        return self.hosts * self.processes


class WarmStartSection(FineTuningSection):
    """Fine-tuning on demonstrations before iteration 0, for models too small to play their roles from the prompt."""

    file: str | None = Field(
        None, description="Parquet of demonstrations, one answer of a role per row (docs/warm-start.md). The "
        "fine-tuned model replaces the base model: every role starts from it. Empty: no warm start"
    )  # fmt: skip


class TrainingSection(FineTuningSection):
    """One training stage of an iteration."""

    mix: Share | None = Field(
        None, description="share of each batch's rows that come from the other role, so that shared parameters don't "
        "forget its format; empty: 0.25 with shared parameters, 0 with separate ones"
    )  # fmt: skip
    rehearse_share: Share = Field(
        0.0, description="share of each batch's rows that are demonstrations of the warm start, of the roles that no "
        "stage trains (bootstrap, evaluate, refine), so that shared parameters don't forget them; with a loss of their "
        "own. Needs warm_start.file"
    )  # fmt: skip
    optimizer: Literal["carry", "reset"] = Field(
        "carry", description="carry: keep the optimizer state from stage to stage; reset: start afresh"
    )
    decay_from: int | None = Field(
        None, ge=0, description="iteration from which the rate falls linearly; empty: constant rate"
    )
    decay_until: int | None = Field(
        None, ge=1, description="iteration in which the rate reaches final_rate; needed with decay_from"
    )
    final_rate: Share = Field(0.1, description="share of learning_rate left at the end")

    @model_validator(mode="after")
    def _decays(self) -> "TrainingSection":
        given = (self.decay_from is not None, self.decay_until is not None)
        if given[0] != given[1] or (all(given) and self.decay_until <= self.decay_from):  # type: ignore[operator]
            raise ValueError(
                "decay_from and decay_until belong together; set both, decay_until to a later iteration"
            )
        return self

    def lr_scale(self, iteration: int) -> float:
        """Share of learning_rate in an iteration: 1 up to decay_from, then linear to final_rate in decay_until."""
        if self.decay_from is None or self.decay_until is None:
            return 1.0
        passed = (iteration - self.decay_from) / (self.decay_until - self.decay_from)
        return 1.0 - (1.0 - self.final_rate) * min(max(passed, 0.0), 1.0)


class PolicyGradientSection(Section):
    """Algorithms grpo and ppo: advantages of sampled turns, and the loss of the policy on them."""

    divide_by_std: bool = Field(
        True, description="divide the advantages of a group by the standard deviation of its returns (GRPO, arXiv "
        "2402.03300), and those of algorithm ppo by their own over the iteration; false: only the baseline is "
        "subtracted (Dr. GRPO, arXiv 2503.20783)"
    )  # fmt: skip
    level: Literal["token", "sequence"] = Field(
        "token", description="what has a ratio p_theta / p_old. token: each token; sequence: a turn's whole text, by "
        "the mean of its tokens' log-ratios (GSPO, arXiv 2507.18071)"
    )  # fmt: skip
    clip_low: Share = Field(
        0.2, description="the ratio is clipped below 1 - clip_low where the advantage is negative"
    )
    clip_high: NonNegative = Field(
        0.2, description="and above 1 + clip_high where it is positive (DAPO, arXiv 2503.14476, takes 0.28)"
    )
    normalisation: Literal["grpo", "dapo", "dr_grpo"] = Field(
        "grpo", description="how a batch's token losses are averaged; only tokens that the policy wrote count, over "
        "all turns of an episode. grpo: mean over each episode's tokens, then over episodes; dapo: mean over all "
        "tokens; dr_grpo: sum over each episode's tokens, divided by those that it may have (roles.policy.max_tokens x "
        "rollout.max_steps), then mean over episodes"
    )  # fmt: skip
    importance_cap: PositiveFloat | None = Field(
        None, description="multiply a token's loss by min(p_old / p_engine, this cap): truncated importance sampling "
        "against the probability that the engine reported. p_old is the trainer's own before the first step. Empty: "
        "not weighted"
    )  # fmt: skip
    discount: Share = Field(1.0, description="algorithm ppo: gamma of returns over turns")
    trace: Share = Field(0.95, description="algorithm ppo: lambda of the generalised advantages")
    value_clip: PositiveFloat | None = Field(
        0.2, description="algorithm ppo: a value that has moved further than this from the one before the stage gets "
        "no gradient that leads it on. Empty: no clipping"
    )  # fmt: skip
    value_coefficient: NonNegative = Field(
        0.5, description="algorithm ppo: of the value head's loss beside the policy's"
    )


class SoftQSection(Section):
    """Algorithm sac: the targets of a scalar critic, and the weights of the actions that the policy is trained on."""

    temperature: PositiveFloat = Field(
        0.05, description="alpha, in units of reward: an action's weight is softmax(Q / alpha) over the actions "
        "sampled in its state (improvement.actions). Smaller is greedier"
    )  # fmt: skip
    discount: Share = Field(0.95, description="gamma of returns over turns")
    value_coefficient: NonNegative = Field(
        1.0, description="of the squared error of Q beside the policy rows' loss, which is in nats: with shared "
        "parameters the larger of the two decides what is learnt"
    )  # fmt: skip


class BackupSection(Section):
    """The critic's loss L1 against the backup's distribution."""

    loss: Literal["sft", "token_kl"] = Field(
        "sft", description="sft: cross-entropy of the corrected label; token_kl: at description positions, "
        "cross-entropy against the top-k probabilities of the backup prompt (thoughts stay sft)"
    )  # fmt: skip
    top_k: PositiveInt = Field(20, description="token_kl: most likely tokens kept per position, renormalised")
    draws: int = Field(
        1, ge=0, description="J, independent draws of (a', d') for a backup that is not terminal. The label is written "
        "from the first draw. A priority uses the log of the mean p_B over all draws, which tightens its bound on the "
        "KL. 0: no bootstrapping, labels tell of one step alone (an ablation)"
    )  # fmt: skip
    shuffle_labels: bool = Field(
        False, description="give labels to the wrong rows: a negative control, which must not learn"
    )


class TargetSection(Section):
    """Target parameters: theta_bar <- (1 - tau) theta_bar + tau theta after every optimizer step."""

    tau: Share = Field(
        0.2, description="share of theta taken per step; 0: never updated (a negative control)"
    )


class AnchorSection(Section):
    """Ties the trained parameters to those they began from in every training stage, because fine-tuning on one task
    erodes general instruction following (paper, appendix B.6)."""

    kl: NonNegative = Field(
        0.0, description="coefficient of KL(p_theta || p_anchor) in nats per token, averaged over the label tokens of "
        "a batch's own rows. Costs a forward pass of the anchor, and with model.train full a second copy of the model"
    )  # fmt: skip
    to: Literal["base", "warm_start"] = Field(
        "warm_start", description="p_anchor. warm_start: the warm-started model, where there is one; base: that of "
        "model.name, to which the KL would undo a warm start. The warm start itself is tied to the base model"
    )  # fmt: skip
    chat_share: Share = Field(
        0.0, description="share of each batch's rows that are general chat, with a loss of their own"
    )
    chat_file: str | None = Field(
        None, description='JSON lines {"messages": [{"role": ..., "content": ...}, ...]}, each ending with the '
        "assistant's answer to train on; empty: the shipped conversations"
    )  # fmt: skip


class ImprovementSection(Section):
    """Critique and refinement."""

    states: PositiveInt = Field(
        12, description="at most this many of the drawn states have an action improved"
    )
    action: Literal["fresh", "replayed"] = Field(
        "fresh", description="the action to improve. fresh: a ~ pi(.|s); replayed: the drawn transition's"
    )
    futures: PositiveInt | None = Field(
        None, description="k, predicted futures that a critique reads; with algorithms self_distillation and nlrl, "
        "Monte-Carlo rollouts. Empty: 1 future, or 4 rollouts (the paper's)"
    )  # fmt: skip
    rounds: PositiveInt = Field(1, description="m, refinement rounds; nlql, nlrl and sac have none")
    verdict: Literal["auto", "written", "scored"] = Field(
        "auto", description="what a critique's verdict is. written: what the evaluator writes; scored: yes where "
        "its probability exceeds one half, with a reason written for it (before it, where the evaluator thinks); the "
        "final choice among several rounds is the most probable action. auto: scored where the evaluator's engine "
        "scores. nlql always scores, without a reason"
    )  # fmt: skip
    require_gain: bool = Field(
        False, description="distil only refinements whose probability of yes exceeds the original action's. A single "
        "round is critiqued again for it. Needs scored verdicts; actions called optimal stay distilled; nlql compares "
        "its actions anyway"
    )  # fmt: skip
    max_rows_per_action: PositiveInt | None = Field(
        None, description="at most this many rows of one iteration distil the same action in the same state; more are "
        "drawn from. Empty: no cap"
    )  # fmt: skip
    actions: PositiveInt = Field(
        4,
        description="algorithms nlql, nlrl and sac: actions sampled at a state; sac samples as many at s' too",
    )
    from_iteration: int = Field(
        0, ge=0, description="earlier iterations train the critic alone (shared parameters only), because an untrained "
        "critic can't improve a policy"
    )  # fmt: skip
