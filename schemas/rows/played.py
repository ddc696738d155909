"""Episodes and their steps, played or imported."""

from typing import ClassVar

from pydantic import Field

from schemas.rows.base import Generation, Row, Split


class Episode(Row):
    """One episode, played by the policy or imported from a log."""

    TABLE: ClassVar[str] = "episodes"
    VERSION: ClassVar[int] = 3
    episode_id: str = Field(description="run/iteration/split/number")
    split: Split = Field(description="train, validation or eval; replay and training read train only")
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
        None, description="JSON: the tool schemas of an imported conversation; NULL: played, or without tools"
    )
    record: int | None = Field(None, description="0-based number of the imported record; NULL: played")
    record_fields: str | None = Field(
        None, description="JSON: the imported record's keys other than messages, tools, task_id, reward and success"
    )  # fmt: skip
    group_id: str | None = Field(
        None, description="run/iteration/split/g/number: the episodes of one draw of a task (rollout.repeats, "
        "evaluation.repeats). NULL: imported, or in older files"
    )  # fmt: skip


class Transition(Row):
    """One step of an episode: (s, a, r, s', done), stored as deltas; `storage.history` rebuilds s."""

    TABLE: ClassVar[str] = "transitions"
    VERSION: ClassVar[int] = 4
    transition_id: str = Field(description="episode_id/step")
    episode_id: str = Field(description="-> episodes")
    split: Split = Field(description="train, validation or eval")
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
        None, description="provenance of the environment model's texts in next_observation, in order (at step 0, also "
        "in the task); NULL where no model took part"
    )  # fmt: skip
    database_reward: float | None = Field(
        None, description="first half of the environment's reward, where it has two (tau_bench): 1 if the database "
        "ended as the task's gold actions leave it, otherwise 0; NULL before the end, and elsewhere"
    )  # fmt: skip
    outputs_reward: float | None = Field(
        None, description="second half: 1 if the user was told all that the task asks for, otherwise 0; NULL also "
        "where it asks for nothing"
    )  # fmt: skip
    end_token_id: int | None = Field(
        None, description="the token by which the policy ended its turn, which is not in token_ids; NULL: a limit "
        "ended it, the engine reports no tokens, or in older files"
    )  # fmt: skip
    end_logprob: float | None = Field(None, description="its log-probability (nats) as sampled")
    messages: list[str] | None = Field(
        None, description="imported: this step's messages as JSON, as logged: those newly seen, the agent's, and at "
        "the last step those after it. In step order they are the conversation. NULL: played"
    )  # fmt: skip


class Reject(Row):
    """A record of an imported file that can't be used; status is the kind of fault."""

    TABLE: ClassVar[str] = "rejects"
    reject_id: str = Field(description="run/iteration/reject/number of the record")
    file: str = Field(description="name of the file")
    record: int = Field(description="0-based number of the record in it (of the line, in a file of lines)")
    excerpt: str = Field(description="the record's first 200 characters")
