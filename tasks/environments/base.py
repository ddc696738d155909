"""The environment protocol: what someone writes, in about 60 lines, to train on their own task."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeGuard, runtime_checkable

import numpy as np

from schemas.rows import Split
from tasks.chat.messages import Message
from tasks.text.action_format import ActionFormat as ActionFormat  # part of the protocol
from tasks.text.action_format import any_of as any_of


@dataclass(frozen=True)
class Task:
    """One task: a stable id within the environment, and the seed that makes it."""

    task_id: str
    split: Split
    seed: int


@dataclass(frozen=True)
class Step:
    """What one action led to.

    Attributes:
        observation: what is newly seen; at the end, how it ended.
        reward: the environment's own reward for this step.
        done: over by the task's own rules: success, failure, a stated turn limit, a lost game.
        truncated: cut from outside the task's rules.
        success: the environment's own definition of success, at the end.
        valid: the environment accepted the action.
        status: 'ok', or what failed in the environment itself as it judged the action; the transition's row has it,
            with `error`, and is not replayed.
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


class Environment(Protocol):
    """A text environment. One instance plays one episode at a time; episodes that run at once have their own.

    Attributes:
        name: for the `environment` column.
        instructions: the policy's system prompt: what the task is, without the answer format.
        action_format: how the environment action is written.
        templates: template name -> file that replaces the shipped wording.
        replayable: reset and the same actions lead to the same state again.
        markov: an observation holds all that matters; earlier turns are left out of every prompt.
    """

    name: str
    instructions: str
    action_format: ActionFormat
    templates: Mapping[str, Path]
    replayable: bool
    markov: bool

    def tasks(self, split: Split) -> Sequence[Task]:
        """All tasks of a split, with stable ids; train and eval are disjoint."""
        ...

    async def reset(self, task: Task) -> str:
        """Begin an episode; returns the first observation (the task)."""
        ...

    async def step(self, action: str) -> Step:
        """Take one environment action."""
        ...

    def validate(self) -> list[str]:
        """Check the environment without any model; one line a fault."""
        ...


@runtime_checkable
class ListsActions(Protocol):
    """An environment whose legal actions can be read off what is seen; it serves exploration and tells validity
    without replaying the episode."""

    def legal_actions(self, observation: str) -> Sequence[str]:
        """All environment actions that would be accepted now."""
        ...


class EpisodeFailed(Exception):
    """The environment can't go on with this episode, through no fault of the policy's. The episode becomes a row with
    status environment_error and this message; others go on."""

    status: ClassVar[str] = "environment_error"


class EnvironmentModelFailed(EpisodeFailed):
    """What the model in an environment should have said could not be had, or could not be read. An environment lets it
    pass (or raises it, of an answer it can't read): the episode becomes a row with status speaker_error."""

    status = "speaker_error"


class Ask(Protocol):
    """Asks the model that speaks in an environment (`environment.model`)."""

    async def __call__(
        self, messages: tuple[Message, ...], *, request_key: str, regex: str | None = None
    ) -> str:
        """One completion, without hidden reasoning and surrounding space.

        Args:
            messages: the chat.
            request_key: tells the requests of one episode apart, for instance the turn; with the episode it keys the
                random stream, so the same key and messages give the same answer within a stage.
            regex: the format of the whole answer, held to where `environment.model.structured` is set.

        Raises:
            EnvironmentModelFailed: the request failed.
        """
        ...


@runtime_checkable
class AsksModel(Protocol):
    """An environment in which another model speaks: an oracle, an opponent, a simulated user.

    Its words come again in another stage only if its engine repeats itself, so such an environment is not
    `replayable`. One that asks only under some of its options says so in an attribute `needs_model: bool`; without
    the attribute it is taken to need a model.
    """

    def connect(self, ask: Ask) -> None:
        """Take the way to ask; called once, before the first reset."""
        ...


def asks_model(environment: object) -> TypeGuard[AsksModel]:
    """Whether a model has to speak in an environment as it is configured."""
    return isinstance(environment, AsksModel) and getattr(environment, "needs_model", True)


@runtime_checkable
class ReadsFiles(Protocol):
    """An environment made out of files, for instance its tasks. Their content determines what its stages give."""

    files: Mapping[str, Path]
    """By the option that names each."""


@runtime_checkable
class NamesNoOp(Protocol):
    """An environment that says which action does nothing, or ends the episode with nothing done; the do-nothing
    baseline takes it. Without the attribute that is the empty action."""

    no_op: str


@runtime_checkable
class ChecksActions(Protocol):
    """An environment that can tell from an action alone whether it would be accepted; it serves one that is not
    replayable."""

    def accepts(self, action: str) -> bool:
        """Whether the action would be accepted, whatever the state."""
        ...


@runtime_checkable
class OffersTools(Protocol):
    """An environment whose actions are calls of tools, written {"name": ..., "arguments": {...}}, or plain words. With
    `roles.policy.tool_calls: native` the chat template offers them, and a model calls them in its own way; every other
    prompt with the instructions lists them behind those."""

    tools: Sequence[Mapping[str, Any]]
    """OpenAI function schemas: {"type": "function", "function": {"name", "description", "parameters"}}."""


async def would_accept(
    environment: Environment, task: Task, actions: Sequence[str], observation: str, action: str
) -> bool:
    """Whether the environment would accept an action in the state that a sequence of actions led to.

    Read off the observation where the environment lists its legal actions; else found by playing the actions
    again in `environment`; of one that is not replayable, told from the action alone, or else from its format.
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


@runtime_checkable
class Unplayable(Protocol):
    """An environment that is known from logged episodes alone: nothing can be played in it, and it has no tasks of its
    own (those of the episodes count). Its reset and step raise."""

    unplayable: str
    """Why, for people."""


def tasks_by_id(environment: Environment, task_ids: Iterable[str]) -> dict[str, Task]:
    """The training tasks that some transitions belong to.

    Raises:
        KeyError: the environment does not know one of them.
    """
    if isinstance(environment, Unplayable):
        return {task_id: Task(task_id, "train", seed=0) for task_id in task_ids}
    known = {task.task_id: task for task in environment.tasks("train")}
    return {task_id: known[task_id] for task_id in task_ids}


class GlobalRandom:
    """A private state of the global generators of Python and NumPy, for libraries that draw from them.

    Several episodes run at once; each wraps its calls in its own state, so that they do not disturb one
    another.
    """

    def __init__(self, seed: int) -> None:
        self._state: Any = random.Random(seed).getstate()
        self._numpy: Any = np.random.RandomState(seed % 2**32).get_state()

    def __enter__(self) -> None:
        self._outer = random.getstate(), np.random.get_state()
        random.setstate(self._state)
        np.random.set_state(self._numpy)

    def __exit__(self, *_: object) -> None:
        self._state, self._numpy = random.getstate(), np.random.get_state()
        random.setstate(self._outer[0])
        np.random.set_state(self._outer[1])
