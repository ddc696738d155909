"""The environment protocol: the class that an author writes, about 60 lines, to train on a task of their own."""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeGuard, TypeVar, runtime_checkable

from schemas.rows import Split
from tasks.chat.messages import Message
from tasks.foreign_json import whole_text
from tasks.text.action_format import ActionFormat as ActionFormat  # part of the protocol
from tasks.text.action_format import any_of as any_of

E = TypeVar("E")


@dataclass(frozen=True)
class Task:
    """One task: a stable id within the environment, and the seed that generates it."""

    task_id: str
    split: Split
    seed: int


@dataclass(frozen=True)
class Step:
    """The result of one action.

    Attributes:
        observation: what is newly seen; at the end, how the episode ended. Lone surrogates are replaced.
        reward: the environment's own reward for this step.
        done: the task's own rules ended the episode: success, failure, a stated turn limit, a lost game.
        truncated: something outside the task's rules ended the episode.
        success: the environment's own definition of success, at the end.
        valid: the environment accepted the action.
        info: `database_reward` and `outputs_reward`, which the episode's row records, if the environment has them.
        status: 'ok', or what failed in the environment itself while it judged the action. The transition's row records
            it together with `error`, and is not replayed.
    """

    observation: str
    reward: float = 0.0
    done: bool = False
    truncated: bool = False
    success: bool = False
    valid: bool = True
    info: Mapping[str, Any] = field(default_factory=dict)
    status: str = "ok"
    error: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "observation", whole_text(self.observation))


class Environment(Protocol):
    """A text environment. An instance plays one episode at a time; concurrent episodes each have their own.

    Attributes:
        name: value of the column `environment`.
        instructions: the task, without the answer format. The prompts of policy, successor, backup, evaluator and
            refiner begin with it.
        action_format: how an action is written.
        templates: template name -> file that replaces the shipped wording.
        replayable: `reset` and the same actions lead to the same state.
        markov: an observation holds the whole state, so prompts leave out earlier turns.
    """

    name: str
    instructions: str
    action_format: ActionFormat
    templates: Mapping[str, Path]
    replayable: bool
    markov: bool

    def tasks(self, split: Split) -> Sequence[Task]:
        """All tasks of a split, with stable ids; no two splits share one. Without validation tasks of its own the
        environment gives none, and a tenth of its training tasks is lent (`tasks.environments.splits`)."""
        ...

    async def reset(self, task: Task) -> str:
        """Start an episode and return its first observation."""
        ...

    async def step(self, action: str) -> Step:
        """Take one action."""
        ...

    def validate(self) -> list[str]:
        """Check the environment without a model; one line per fault."""
        ...


class EpisodeFailed(Exception):
    """The environment can't continue this episode, and not because of the policy.

    The episode becomes a row with status environment_error and this message; other episodes continue.
    """

    status: ClassVar[str] = "environment_error"


class EnvironmentModelFailed(EpisodeFailed):
    """The environment model gave no answer. An environment lets the exception through; the episode becomes a row with
    status speaker_error."""

    status = "speaker_error"


class EnvironmentModelUnreadable(EpisodeFailed):
    """The environment model's answer can't be read. An environment raises it; the episode becomes a row with status
    speaker_unreadable, which no outage explains (`faults.max_failed_share` does not count it)."""

    status = "speaker_unreadable"


class Ask(Protocol):
    """Sends a request to the environment model, the one that `environment.model` configures."""

    async def __call__(
        self, messages: tuple[Message, ...], *, request_key: str, regex: str | None = None
    ) -> str:
        """One completion, without hidden reasoning and surrounding white space.

        Args:
            messages: the chat.
            request_key: distinguishes the requests of one episode, for instance by turn. Episode and key determine the
                random stream, so the same key and messages give the same answer within a stage.
            regex: format of the whole answer; enforced if `environment.model.structured` is set.

        Raises:
            EnvironmentModelFailed: the request failed.
        """
        ...


@runtime_checkable
class AsksModel(Protocol):
    """Optional: another model takes part as an oracle, an opponent or a simulated user.

    Its answers recur in another stage only if its engine is deterministic, so such an environment is not `replayable`.
    An environment that asks under some of its options only has an attribute `needs_model: bool`, true by default.
    """

    def connect(self, ask: Ask) -> None:
        """Keep `ask` for later; called once, before the first reset."""
        ...


def asks_model(environment: object) -> TypeGuard[AsksModel]:
    """Whether an environment needs an environment model as it is configured."""
    return isinstance(environment, AsksModel) and getattr(environment, "needs_model", True)


@runtime_checkable
class ListsActions(Protocol):
    """Optional: the legal actions follow from the observation. Used for exploration and for a validity check that does
    not replay the episode."""

    def legal_actions(self, observation: str) -> Sequence[str]:
        """All actions that would be accepted now."""
        ...


@dataclass(frozen=True)
class SolvedState:
    """A state whose optimal play is known.

    Attributes:
        observation: what is seen in it.
        best: its optimal actions; equals are all optimal.
        futures: legal action -> what follows if the best actions come after it, as a future describes it.
    """

    observation: str
    best: Sequence[str]
    futures: Mapping[str, str]


@runtime_checkable
class KnowsBestActions(Protocol):
    """Optional: optimal play is known, so a supervised ceiling can be trained (`nlac ceiling`)."""

    def solved_states(self, split: Split) -> Iterator[SolvedState]:
        """Every state in which the agent of a split's tasks can be, without its past turns."""
        ...


@runtime_checkable
class ChecksActions(Protocol):
    """Optional, for an environment that is not replayable: validity follows from the action alone."""

    def accepts(self, action: str) -> bool:
        """Whether the action is accepted in every state."""
        ...


@runtime_checkable
class NamesNoOp(Protocol):
    """Optional: the action of the do-nothing baseline, which does nothing or ends the episode. By default it is the
    empty action."""

    no_op: str


@runtime_checkable
class Closes(Protocol):
    """Optional: an episode holds something that others wait for, for instance a browser."""

    async def close(self) -> None:
        """Give back what the instance holds; called when it plays no further. `reset` takes it anew."""
        ...


@asynccontextmanager
async def closing(environment: E) -> AsyncIterator[E]:
    """An environment, closed at the end of the block if it can be, however the block ends."""
    try:
        yield environment
    finally:
        if isinstance(environment, Closes):
            await environment.close()


@runtime_checkable
class ReadsFiles(Protocol):
    """Optional: files that the environment is built from. Their content is part of its stages' fingerprints."""

    files: Mapping[str, Path]
    """Option -> file."""


@runtime_checkable
class OffersTools(Protocol):
    """Optional: actions are tool calls, written {"name": ..., "arguments": {...}}, or plain text.

    With `roles.policy.tool_calls: native` the chat template offers the tools and the model calls them in its own
    syntax. Every other prompt lists them after the instructions.
    """

    tools: Sequence[Mapping[str, Any]]
    """OpenAI function schemas: {"type": "function", "function": {"name", "description", "parameters"}}."""


@runtime_checkable
class Unplayable(Protocol):
    """Optional: the environment stands for logged episodes and can't be played. It has no tasks of its own, and `reset`
    and `step` raise EpisodeFailed."""

    unplayable: str
    """The reason, for messages."""


async def would_accept(
    environment: Environment, task: Task, actions: Sequence[str], observation: str, action: str
) -> bool:
    """Whether the environment would accept an action in the state that past actions led to.

    Decided by the legal actions if the environment lists them, else by replaying `actions`. If it is not replayable
    either, by `accepts`; without that, every action in the right format counts as accepted.
    """
    if isinstance(environment, ListsActions):
        return action in environment.legal_actions(observation)
    if not environment.replayable:
        return not isinstance(environment, ChecksActions) or environment.accepts(action)
    await environment.reset(task)
    for past in actions:
        if (await environment.step(past)).done:
            return False
    return (await environment.step(action)).valid


def tasks_by_id(environment: Environment, task_ids: Iterable[str]) -> dict[str, Task]:
    """The training tasks with these ids.

    Raises:
        KeyError: the environment has no such training task.
    """
    if isinstance(environment, Unplayable):
        return {task_id: Task(task_id, "train", seed=0) for task_id in task_ids}
    known = {task.task_id: task for task in environment.tasks("train")}
    return {task_id: known[task_id] for task_id in task_ids}
