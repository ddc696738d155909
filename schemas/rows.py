"""One pydantic model per table: the columns every stage writes and SQL reads.

The docstring of a model says what one row is; a field's description is what `nlac sql` shows for the column.
Rules that hold for every table:
- ids are deterministic, built from the id of the row it came from, so each row joins back to its source;
- a failed item is a row with `status != 'ok'` and `error`, never left out and never replaced by a default;
- no clock time, speed or Prefect/MLflow id stands in a row (they live in the manifest): equal inputs give
  equal rows;
- every generated text has a `Generation` beside it.
Adding a column raises VERSION; files of older versions still read, the new column as NULL, so it must be
Optional.
"""

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

Split = Literal["train", "eval"]
PriorityKind = Literal["kl_bound", "nll"]


class Generation(BaseModel):
    """Where one generated text came from: enough to ask for it again."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    engine: str = Field(description="engine name in the configuration")
    model_version: str = Field(description="model or adapter version that wrote it")
    prompt_digest: str = Field(
        description="sha256 (12 hex) of the prompt template; of a speaker, which has none, of its first message"
    )
    temperature: float = Field(description="sampling temperature; 0 is greedy")
    top_p: float = Field(description="nucleus sampling mass")
    max_tokens: int = Field(description="cap on completion tokens")
    seed: int = Field(description="seed of this request's own random stream")
    prompt_tokens: int = Field(description="tokens read")
    completion_tokens: int = Field(description="tokens written")
    finish_reason: str = Field(description="stop, length or error")
    dropped_turns: int | None = Field(
        None, description="oldest exchanges of the history left out of the prompt to fit it into the context window "
        "(docs/logged.md); NULL, in older files: none"
    )  # fmt: skip
    dropped_chars: int | None = Field(None, description="characters left out of the prompt, theirs included")


class Row(BaseModel):
    """What every table has."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())
    TABLE: ClassVar[str]
    VERSION: ClassVar[int] = 1

    run: str = Field(description="run the row belongs to")
    iteration: int = Field(description="iteration that wrote it")
    status: str = Field("ok", description="'ok', or what kind of failure this row records")
    error: str | None = Field(None, description="what went wrong, when status is not 'ok'")


class Episode(Row):
    """One episode, played by the policy or imported from a log."""

    TABLE: ClassVar[str] = "episodes"
    VERSION: ClassVar[int] = 2
    episode_id: str = Field(description="run/iteration/split/number")
    split: Split = Field(description="train or eval; replay and training read train only")
    environment: str = Field(description="environment name")
    task_id: str = Field(description="task within the environment")
    seed: int = Field(description="environment seed")
    policy_version: str = Field(description="policy that played")
    steps: int = Field(description="actions taken")
    reward: float = Field(description="sum of r as the configuration chooses it")
    game_reward: float = Field(description="sum of the environment's own reward")
    success: bool = Field(description="the environment's own definition of success")
    done: bool = Field(description="ended by the task's own rules")
    truncated: bool = Field(description="cut by a cap from outside")
    invalid_actions: int = Field(description="actions that did not parse or were refused")
    tools: str | None = Field(
        None, description="JSON: the tool schemas of an imported conversation; NULL: none, or played"
    )
    record: int | None = Field(
        None, description="number of the record it was imported from, from 0; NULL: it was played"
    )
    record_fields: str | None = Field(
        None, description="JSON: what that record holds beside messages, tools, task_id, reward and success"
    )


class Transition(Row):
    """One step of an episode: (s, a, r, s', done), stored as deltas; `storage.history` rebuilds s."""

    TABLE: ClassVar[str] = "transitions"
    VERSION: ClassVar[int] = 3
    transition_id: str = Field(description="episode_id/step")
    episode_id: str = Field(description="-> episodes")
    split: Split = Field(description="train or eval")
    step: int = Field(description="0-based step within the episode")
    task_id: str = Field(description="task within the environment")
    observation: str = Field(description="what was newly seen before acting (step 0: the task)")
    raw_action: str = Field(description="the model's whole text")
    thought: str = Field(description="its reasoning; changes nothing outside")
    reasoning: str | None = Field(
        None, description="hidden chain of thought (<think>), never in a prompt again"
    )
    action: str = Field(description="the environment action taken from the text")
    action_valid: bool = Field(description="parsed, and accepted by the environment")
    next_observation: str = Field(description="what was newly seen after acting (the delta from s to s')")
    reward: float = Field(description="r as the configuration chooses it (reward: success | game)")
    game_reward: float = Field(description="the environment's own reward")
    success: bool = Field(description="the episode succeeded at this step")
    done: bool = Field(description="the episode ended here by its own rules; no bootstrap")
    truncated: bool = Field(description="the episode was cut here from outside; bootstraps from s'")
    policy_version: str = Field(description="policy that acted")
    token_ids: list[int] = Field(description="completion token ids; empty if the engine gives none")
    logprobs: list[float] = Field(description="their log-probabilities (nats) as sampled")
    generation: Generation | None = Field(None, description="provenance of the action")
    speaker_generations: list[Generation] | None = Field(
        None, description="provenance of what a model said in the environment to make next_observation (at step 0, "
        "also of the task), in order; NULL where none spoke"
    )  # fmt: skip
    database_reward: float | None = Field(
        None, description="half of the environment's reward, where it has two (tau_bench): 1 if the database ended as "
        "the task's gold actions leave it, else 0; NULL before the end, and elsewhere"
    )  # fmt: skip
    outputs_reward: float | None = Field(
        None, description="the other half: 1 if the user was told all that the task asks for, else 0; NULL also where "
        "it asks for nothing"
    )  # fmt: skip
    messages: list[str] | None = Field(
        None, description="imported: the messages of this step as JSON, as they were logged: those newly seen, the "
        "agent's, and at the last step those after it; in order of the steps they are the conversation. NULL: played"
    )  # fmt: skip


class Reject(Row):
    """A record of an imported file that can't be used; status says of what kind the fault is."""

    TABLE: ClassVar[str] = "rejects"
    reject_id: str = Field(description="run/iteration/reject/number of the record")
    file: str = Field(description="name of the file")
    record: int = Field(description="number of the record in it, from 0 (of a line, in a file of lines)")
    excerpt: str = Field(description="how the record begins, 200 characters")


class ReplaySample(Row):
    """One draw from replay, with replacement (Schaul et al. 2016)."""

    TABLE: ClassVar[str] = "replay_samples"
    sample_id: str = Field(description="run/iteration/draw number")
    transition_id: str = Field(description="-> transitions (of any iteration)")
    draw: int = Field(description="0-based draw number")
    priority: float = Field(description="p_i at the draw; unscored rows take the largest known")
    scored: bool = Field(description="whether p_i was measured before")
    priority_kind: PriorityKind | None = Field(
        None, description="what p_i measures; NULL when nothing is scored"
    )
    probability: float = Field(description="P(i), proportional to (p_i + eps)^alpha")
    weight: float = Field(description="(N P(i))^-beta divided by its maximum over the draw")


class DrawnText(BaseModel):
    """What of a Generation varies from draw to draw; the rest is as in that of the first draw."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    seed: int = Field(description="seed of this request's own random stream")
    prompt_tokens: int = Field(description="tokens read")
    completion_tokens: int = Field(description="tokens written")
    finish_reason: str = Field(description="stop, length or error")


class BootstrapDraw(BaseModel):
    """A further draw of (a', d') at s'; columns as in BellmanTarget."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    status: str = Field(description="ok, next_action_failed or next_future_failed")
    fault: str | None = Field(None, description="what went wrong, when status is not 'ok'")
    next_thought: str | None = None
    next_action: str | None = None
    next_action_text: str | None = None
    next_future: str | None = None
    next_future_malformed: bool | None = None
    next_action_reasoning: str | None = None
    next_future_reasoning: str | None = None
    next_action_drawn: DrawnText | None = Field(None, description="provenance of a'")
    next_future_drawn: DrawnText | None = Field(None, description="provenance of d'")


class BellmanTarget(Row):
    """One language Bellman backup: d ~ B(.|s,a,r,s',a',d')."""

    TABLE: ClassVar[str] = "bellman_targets"
    VERSION: ClassVar[int] = 3
    target_id: str = Field(description="same as its sample_id")
    sample_id: str = Field(description="-> replay_samples")
    transition_id: str = Field(description="-> transitions")
    terminal: bool = Field(description="done: made from r and s' alone, no a' and d'")
    next_thought: str | None = Field(None, description="thought of a'")
    next_action: str | None = Field(None, description="environment action of a' ~ pi(.|s')")
    next_action_text: str | None = Field(None, description="a' as the model wrote it")
    next_future: str | None = Field(None, description="d' ~ M_target(.|s',a')")
    next_future_malformed: bool | None = Field(
        None, description="d' lacked its format; the whole text was taken"
    )
    thought: str = Field(description="the backup's chain of thought")
    description: str = Field(description="d, the future seen from (s,a)")
    malformed: bool = Field(description="the backup lacked its format; the whole text is the description")
    next_action_generation: Generation | None = Field(None, description="provenance of a'")
    next_future_generation: Generation | None = Field(None, description="provenance of d'")
    generation: Generation | None = Field(None, description="provenance of thought and description")
    other_draws: list[BootstrapDraw] | None = Field(
        None, description="(a', d') number 2 to J (backup.draws), for log p_B alone; NULL: there is no other"
    )
    reasoning: str | None = Field(None, description="the backup's hidden chain of thought, never trained on")
    next_action_reasoning: str | None = Field(None, description="that of a'")
    next_future_reasoning: str | None = Field(None, description="that of d'")


class CorrectedTarget(Row):
    """A target whose reasoning no longer asserts what the student can't see (paper, appendix B.2)."""

    TABLE: ClassVar[str] = "corrected_targets"
    VERSION: ClassVar[int] = 3
    corrected_id: str = Field(description="same as its target_id")
    target_id: str = Field(description="-> bellman_targets")
    transition_id: str = Field(description="-> transitions")
    verdict: Literal["clean", "rewritten", "thought_dropped", "row_dropped"] = Field(
        description="clean: nothing to do; rewritten: a rewrite passed; the others: none did"
    )
    thought_before: str = Field(description="the backup's thought")
    thought: str = Field(description="the thought trained on; empty when dropped")
    description: str = Field(description="copied from the target, never regenerated")
    leak_before: float = Field(description="share of the thought's words inside leaks, before")
    leak_after: float = Field(description="the same for the thought kept")
    leaks: list[str] = Field(description="leaking passages found before")
    attempts: int = Field(description="rewrites asked for")
    backup_logprobs: list[float] | None = Field(
        None,
        description="log p_B of the description's tokens under the backup prompt; NULL: engine can't score",
    )
    generation: Generation | None = Field(None, description="provenance of the last rewrite")
    backup_draw_logprobs: list[float] | None = Field(
        None,
        description="log p_B of the whole description under the backup prompt of each usable (a', d'), the first's "
        "own included; NULL: there is one alone (sum backup_logprobs), or engine can't score",
    )
    backup_top_ids: list[list[int]] | None = Field(
        None,
        description="token_kl: the most likely tokens at each of the description's tokens under the backup prompt, "
        "most likely first; NULL: backup.loss is sft",
    )
    backup_top_logprobs: list[list[float]] | None = Field(
        None, description="their log-probabilities (nats), before renormalising"
    )
    discount_next: float | None = Field(
        None,
        description="share of the description's content words that the next observation and r have and d' lacks; "
        "NULL: terminal, or no content word",
    )
    discount_future: float | None = Field(None, description="share that d' has, and they lack")
    discount_both: float | None = Field(None, description="share that both have; the rest is in neither")
    reasoning: str | None = Field(None, description="hidden chain of thought of the last rewrite")
    dropped_turns: int | None = Field(
        None,
        description="oldest exchanges left out of the backup prompt it was scored under; NULL: not scored",
    )
    dropped_chars: int | None = Field(None, description="characters left out of that prompt, theirs included")


class PastTurn(BaseModel):
    """One past step of a demonstrated state."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    observation: str = Field(description="what was seen")
    answer: str = Field(description="what was answered, whole")


class TriedAction(BaseModel):
    """An action and its critique, as the refiner is shown them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    action_text: str = Field(description="the action")
    optimal: bool = Field(description="its verdict")
    critique: str = Field(description="the reason of the verdict")


class Demonstration(Row):
    """One answer of a role, demonstrated; what a warm start trains on. From `role` on these are the columns of the
    Parquet file that warm_start.file names."""

    TABLE: ClassVar[str] = "demonstrations"
    demonstration_id: str = Field(description="run/demonstration/number of the row in the file")
    role: Literal["policy", "predict", "bootstrap", "evaluate", "refine"] = Field(description="who answers")
    turns: list[PastTurn] = Field([], description="the state's past turns")
    observation: str = Field(description="the observation to act on")
    action_text: str | None = Field(None, description="predict, bootstrap, evaluate: the action in question")
    next_observation: str | None = Field(None, description="bootstrap: what it led to")
    reward: float | None = Field(None, description="bootstrap: r")
    next_action_text: str | None = Field(None, description="bootstrap: a'; NULL at the end of an episode")
    next_future: str | None = Field(None, description="bootstrap: d', with a'")
    futures: list[str] | None = Field(None, description="evaluate: the futures to judge by")
    attempts: list[TriedAction] | None = Field(None, description="refine: the actions so far")
    thought: str = Field("", description="answer of policy, refine, predict, bootstrap: its thought")
    answer: str = Field(
        description="the environment action (policy, refine), the description (predict, bootstrap), the reason "
        "(evaluate)"
    )
    optimal: bool | None = Field(None, description="answer of evaluate: its verdict")


class TrainingRow(Row):
    """One row trained on: what went into an adapter version."""

    TABLE: ClassVar[str] = "training_rows"
    VERSION: ClassVar[int] = 3
    stage: str = Field(description="critic-sft, policy-distillation or warm-start")
    role: Literal["critic", "policy", "chat", "demonstration"] = Field(
        description="which role's prompt and loss; chat: general conversation; demonstration: its own role's"
    )
    source_table: str = Field(
        description="corrected_targets, refinements, transitions or demonstrations; chat_file: no table, "
        "anchor.chat_file"
    )
    source_id: str = Field(description="id in that table; chat/number of the line in the file")
    adapter_version: str = Field(description="adapter version this row helped to train")
    weight: float = Field(description="importance weight on its loss")
    prompt_tokens: int = Field(description="tokens without loss")
    label_tokens: int = Field(description="tokens with loss")
    uses: int = Field(description="optimizer steps whose batch held the row")
    dropped_turns: int | None = Field(
        None,
        description="oldest exchanges left out of its prompt, as in Generation; NULL, in older files: none",
    )
    dropped_chars: int | None = Field(None, description="characters left out of its prompt, theirs included")


class TrainingStep(Row):
    """One optimizer step."""

    TABLE: ClassVar[str] = "training_steps"
    VERSION: ClassVar[int] = 2
    stage: str = Field(description="critic-sft or policy-distillation")
    adapter_version: str = Field(description="adapter version being trained")
    step: int = Field(description="0-based optimizer step of this stage")
    loss: float = Field(
        description="critic_loss + policy_loss + chat_loss + anchor.kl * anchor_kl (nats per token); a warm start's "
        "over all of its rows"
    )
    critic_loss: float | None = Field(
        None, description="mean over critic rows of w * NLL; NULL without such rows"
    )
    policy_loss: float | None = Field(
        None, description="mean over policy rows of NLL; NULL without such rows"
    )
    chat_loss: float | None = Field(None, description="mean over chat rows of NLL; NULL without such rows")
    anchor_kl: float | None = Field(
        None,
        description="mean KL(p_theta || p_base) at the own rows' label tokens; NULL where anchor.kl is 0",
    )
    learning_rate: float = Field(description="rate of this step")
    grad_norm: float = Field(description="global gradient norm before clipping")
    rows: int = Field(description="rows in the batch")
    label_tokens: int = Field(description="tokens with loss in the batch")
    tokens: int = Field(description="tokens without padding in the batch")


class Priority(Row):
    """The critic's loss on one transition, scored once before the stage's first update."""

    TABLE: ClassVar[str] = "priorities"
    VERSION: ClassVar[int] = 2
    transition_id: str = Field(description="-> transitions")
    priority: float = Field(
        description="p_i = max(0, mean log p_B - log p_theta), or the NLL (priority_kind)"
    )
    priority_kind: PriorityKind = Field(description="kl_bound, or nll where B has no log-probabilities")
    critic_logprob: float = Field(description="mean log p_theta over description tokens")
    backup_logprob: float | None = Field(
        None, description="the same of log p_B: with several draws, of the log of the mean of p_B over them"
    )
    description_tokens: int = Field(description="tokens the means are taken over")
    backup_draws: int | None = Field(
        None,
        description="most draws of (a', d') that p_B of a target is the mean over: 1 for a terminal one, up to J "
        "(backup.draws) else; NULL: priority_kind is nll",
    )


class Future(Row):
    """One future of an action: sampled from the successor, d_j ~ M_theta(.|s,a), or played (self_distillation)."""

    TABLE: ClassVar[str] = "futures"
    VERSION: ClassVar[int] = 3
    future_id: str = Field(description="critique_id/f/number")
    critique_id: str = Field(description="-> critiques (the judgement that reads it)")
    thought: str = Field(description="the successor's reasoning; empty for a rollout")
    description: str = Field(description="the predicted future, or what happened in the rollout")
    malformed: bool = Field(description="it lacked its format; the whole text is the description")
    source: Literal["successor", "rollout"] | None = Field(
        None,
        description="successor: predicted; rollout: played by the policy; NULL, in older files: predicted",
    )
    policy_version: str | None = Field(None, description="the policy that played a rollout")
    generation: Generation | None = Field(None, description="provenance; NULL for a rollout")
    reasoning: str | None = Field(None, description="the successor's hidden chain of thought, in no prompt")


class Critique(Row):
    """One judgement of one action: q ~ E(.|s,a,d1..dk)."""

    TABLE: ClassVar[str] = "critiques"
    VERSION: ClassVar[int] = 3
    critique_id: str = Field(
        description="sample_id/c/round; with algorithm nlql, sample_id/c/0/number of the action"
    )
    sample_id: str = Field(description="-> replay_samples")
    transition_id: str = Field(description="-> transitions (whose state s is acted in)")
    round: int = Field(description="0: of the action to improve; j: of the j-th refinement")
    action_source: Literal["fresh", "replayed", "refined"] = Field(
        description="where the judged action comes from"
    )
    action_text: str = Field(description="the judged action, whole text")
    thought: str = Field(description="its thought")
    action: str = Field(description="its environment action")
    optimal: bool | None = Field(
        None, description="the verdict; NULL when it can't be parsed. Scored: yes_probability > 0.5"
    )
    critique: str = Field(description="why, and how to improve; empty where the verdict is scored")
    yes_probability: float | None = Field(
        None, description="scored verdict (nlql): p(yes) / (p(yes) + p(no)); NULL where it is written"
    )
    action_generation: Generation | None = Field(None, description="provenance of the judged action")
    generation: Generation | None = Field(None, description="provenance of the critique")
    reasoning: str | None = Field(
        None, description="the evaluator's hidden chain of thought, in no prompt again"
    )
    action_reasoning: str | None = Field(
        None, description="that of a fresh action, which is judged without it"
    )


class Refinement(Row):
    """One proposal to improve an action. `distil` marks the one row per sample that the policy is trained
    on."""

    TABLE: ClassVar[str] = "refinements"
    VERSION: ClassVar[int] = 2
    refinement_id: str = Field(description="sample_id/r/round")
    critique_id: str = Field(description="-> critiques (the judgement it answers)")
    sample_id: str = Field(description="-> replay_samples")
    transition_id: str = Field(description="-> transitions (whose state s is acted in)")
    round: int = Field(description="1..m; m+1 is the final choice among the tried actions")
    kind: Literal["kept", "refined", "chosen"] = Field(
        description="kept: judged optimal, the action itself; refined: rewritten; chosen: picked among tried ones"
    )
    action_text: str = Field(description="the refiner's whole text (or the kept action's)")
    thought_before: str = Field(description="its thought as written")
    thought: str = Field(description="the thought distilled; empty when dropped")
    action: str = Field(description="the environment action")
    valid: bool = Field(description="the environment would accept it")
    changed: bool = Field(description="the environment action differs from the one that was to be improved")
    verdict: Literal["clean", "rewritten", "thought_dropped", "row_dropped"] | None = Field(
        None, description="correction of the thought; NULL when none was needed or reached"
    )
    leak_before: float | None = Field(None, description="share of the thought's words inside leaks, before")
    leak_after: float | None = Field(None, description="the same for the thought kept")
    distil: bool = Field(description="goes into policy distillation")
    generation: Generation | None = Field(None, description="provenance of the refined action")
    correction_generation: Generation | None = Field(None, description="provenance of the corrected thought")
    reasoning: str | None = Field(None, description="the refiner's hidden chain of thought, never trained on")
    correction_reasoning: str | None = Field(None, description="that of the thought's last rewrite")


class Evaluation(Row):
    """One evaluation of one policy on held-out tasks."""

    TABLE: ClassVar[str] = "evaluations"
    VERSION: ClassVar[int] = 2
    policy_version: str = Field(description="policy that played")
    environment: str = Field(description="environment name")
    episodes: int = Field(description="episodes played to an end")
    failed_episodes: int = Field(description="episodes with a status other than ok; not in the rates")
    successes: int = Field(description="episodes that succeeded")
    success_rate: float | None = Field(None, description="successes / episodes; NULL without episodes")
    success_low: float | None = Field(None, description="95% Wilson interval, lower end")
    success_high: float | None = Field(None, description="95% Wilson interval, upper end")
    mean_reward: float | None = Field(None, description="mean sum of r")
    mean_game_reward: float | None = Field(None, description="mean sum of the environment's own reward")
    mean_turns: float | None = Field(None, description="mean actions per episode")
    invalid_action_rate: float | None = Field(None, description="invalid actions / actions")
    baseline: Literal["random", "nothing"] | None = Field(
        None, description="a player without a model, on the same tasks: legal actions at random, or none done at all; "
        "NULL: not played (evaluation.baseline)"
    )  # fmt: skip
    baseline_success_rate: float | None = Field(None, description="its success rate")
    pass_hat: list[float] | None = Field(
        None, description="pass^k for k = 1, 2, ... up to the fewest plays of a task: the mean over tasks of C(c, k) / "
        "C(n, k), where c of n plays succeeded; NULL where no task was played twice (evaluation.repeats)"
    )  # fmt: skip


class Retention(Row):
    """One general prompt of the retention check: how far the evaluated policy has drifted from the base model."""

    TABLE: ClassVar[str] = "retention"
    prompt_id: str = Field(description="retention/number of the line in the shipped set")
    prompt: str = Field(description="what the user last said")
    policy_version: str = Field(description="the policy compared with the base model")
    tokens: int = Field(description="tokens of the fixed reference answer, which is scored, not written")
    base_logprob: float | None = Field(None, description="mean log p_base of its tokens (nats per token)")
    policy_logprob: float | None = Field(None, description="the same under the policy")
    drift: float | None = Field(
        None, description="policy_logprob - base_logprob; below 0: it got less likely"
    )
    kl: float | None = Field(
        None, description="mean over its tokens of a lower bound of KL(p_base || p_policy), nats, from the 50 most "
        "likely tokens of each"
    )  # fmt: skip


TABLES: dict[str, type[Row]] = {
    model.TABLE: model
    for model in (
        Episode, Transition, Reject, ReplaySample, BellmanTarget, CorrectedTarget, TrainingRow, TrainingStep, Priority,
        Future, Critique, Refinement, Evaluation, Retention, Demonstration,
    )
}  # fmt: skip
