"""A taskset of the library `verifiers` as an environment: its own `run` plays the episode, and our steps are the turns
of its agent. Needs the package verifiers 0.4."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.graph import MessageNode
from verifiers.v1.trace import AgentInfo, TraceTask
from verifiers.v1.utils.loaders import load_environment, resolve_env_config

from schemas.rows import Split
from tasks.environments.base import ActionFormat, EpisodeFailed, Step, Task

_OVER = "The episode is over."


class FromVerifiers:
    """A taskset of `verifiers`, with the environment that it names or the one of a single agent.

    An observation is what the agent is told before a turn, an action is its reply. The reward is given at the end: the
    weighted sum of the trace's rewards. Tasks that need a runtime (a container, files, tools) can't be played here, and
    neither can environments with several agents.

    Args:
        taskset: id of an installed taskset.
        options: of the taskset's configuration.
        train: the first so many tasks are for training.
        held_out: the next so many are for evaluation.
        success: least reward of a success.
        instructions: the task in words; every prompt begins with them.
        action: regular expression of an action.
        action_in_words: the same for the prompt.
        replayable: whether the same replies lead to the same state.

    Raises:
        ValueError: the taskset needs what is not here, or has too few tasks.
    """

    name = "verifiers"
    templates: Mapping[str, Path] = {}
    markov = False

    def __init__(
        self,
        taskset: str,
        options: Mapping[str, Any] | None = None,
        train: int = 64,
        held_out: int = 16,
        success: float = 1.0,
        instructions: str = "Answer as you are told.",
        action: str = r"[^\n]{1,400}",
        action_in_words: str = "your reply, on one line",
        replayable: bool = False,
    ) -> None:
        self.instructions, self.replayable, self._success = instructions, replayable, success
        self.action_format = ActionFormat(action, action_in_words)
        self._env = load_environment(resolve_env_config({"taskset": {"id": taskset, **(options or {})}}))
        self._agents = list(agent_config_fields(self._env.config))
        if len(self._agents) != 1:
            raise ValueError(
                f"taskset: {taskset} has the agents {', '.join(self._agents)}; one can be played here"
            )
        found = list(itertools.islice(self._env.taskset, train + held_out))
        if len(found) < train + held_out:
            raise ValueError(f"train, held_out: {taskset} has {len(found)} tasks; ask for fewer")
        self._tasks: dict[str, vf.Task] = {}
        self._splits: dict[Split, list[Task]] = {"train": [], "eval": []}
        for number, task in enumerate(found):
            split: Split = "train" if number < train else "eval"
            ours = Task(f"{split}/{number}-{task.key[:12]}", split, number)
            self._splits[split].append(ours)
            self._tasks[ours.task_id] = task
        if fault := next(filter(None, map(needs_runtime, self._tasks.values())), None):
            raise ValueError(f"taskset: {taskset}: {fault}, which is not here; choose another")
        self._seat: _Seat | None = None

    def tasks(self, split: Split) -> Sequence[Task]:
        return self._splits.get(split, [])

    async def reset(self, task: Task) -> str:
        if self._seat is not None:
            await self._seat.leave()
        theirs = self._tasks[task.task_id]
        self._seat = _Seat(self._env, self._agents[0], theirs)
        told = await self._seat.told()
        if told is None:
            raise EpisodeFailed(f"{task.task_id}: the environment ended before the agent's first turn")
        return "\n\n".join(part for part in (theirs.data.system_prompt, told) if part)

    async def step(self, action: str) -> Step:
        assert self._seat is not None, "reset comes first"
        self._seat.replies.put_nowait(action)
        told = await self._seat.told()
        if told is not None:
            return Step(told)
        reward = self._seat.reward
        return Step(_OVER, reward, done=True, success=reward >= self._success)

    def validate(self) -> list[str]:
        """Every task has its own key."""
        keys = [task.key for task in self._tasks.values()]
        return [] if len(set(keys)) == len(keys) else [f"{self.name}: two tasks are the same"]


def needs_runtime(task: vf.Task) -> str | None:
    """What of a task can't be had without a runtime; None if nothing."""
    kind = type(task)
    for hook in ("setup", "finalize"):
        if getattr(kind, hook) is not getattr(vf.Task, hook):
            return f"{kind.__name__}.{hook} needs a runtime"
    if kind.NEEDS_CONTAINER:
        return f"{kind.__name__} needs a container"
    return f"{kind.__name__} offers tools" if kind.toolsets(task.config) else None


class _Seat:
    """The agent of one episode: an Env's `run` sits on one side of two queues, and our steps on the other."""

    def __init__(self, env: vf.Env, agent: str, task: vf.Task) -> None:
        self.replies: asyncio.Queue[str] = asyncio.Queue()
        self._told: asyncio.Queue[str] = asyncio.Queue()
        self._traces: list[vf.Trace] = []
        seat = SimpleNamespace(interaction=self._interaction, run=self._run)
        self._playing = asyncio.create_task(env.run(task, SimpleNamespace(**{agent: seat})))

    async def told(self) -> str | None:
        """What the agent is told next; None once the episode is over.

        Raises:
            EpisodeFailed: the environment raised.
        """
        told = asyncio.create_task(self._told.get())
        await asyncio.wait((told, self._playing), return_when=asyncio.FIRST_COMPLETED)
        if told.done():
            return told.result()
        told.cancel()
        if (error := self._playing.exception()) is not None:
            raise EpisodeFailed(f"{type(error).__name__}: {error}") from error
        return None

    async def leave(self) -> None:
        """End an episode that is not over; one of an event loop that is closed has ended with it."""
        if not self._playing.done():
            self._playing.cancel()
            await asyncio.gather(self._playing, return_exceptions=True)

    @property
    def reward(self) -> float:
        """Of all interactions of the episode."""
        return float(sum(trace.reward for trace in self._traces))

    @asynccontextmanager
    async def _interaction(self, task: vf.Task, **borrowed: Any) -> AsyncIterator["_Interaction"]:
        talk = _Interaction(task, self._told, self.replies)
        self._traces.append(talk.trace)
        yield talk
        await task.score(talk.trace)

    async def _run(self, task: vf.Task, **borrowed: Any) -> vf.Trace:
        async with self._interaction(task) as talk:
            await talk.turn()
        return talk.trace


class _Interaction:
    """What an Env sees of its agent: turns, and the trace that rewards are read from."""

    def __init__(self, task: vf.Task, told: asyncio.Queue[str], replies: asyncio.Queue[str]) -> None:
        self._told, self._replies = told, replies
        about = TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
        self.trace: vf.Trace = vf.Trace(task=about, agent=AgentInfo(config=vf.AgentConfig()))

    async def turn(self, message: Any = None) -> vf.Segment:
        """Tell the agent a message, the task's prompt where there is none, and give its reply."""
        told = self.trace.task.data.prompt_text if message is None else _text(message)
        self._add(vf.UserMessage(content=told), sampled=False)
        self._told.put_nowait(told)
        reply = vf.AssistantMessage(content=await self._replies.get())
        self._add(reply, sampled=True)
        return vf.Segment([reply])

    def _add(self, message: Any, *, sampled: bool) -> None:
        nodes = self.trace.nodes
        nodes.append(MessageNode(parent=len(nodes) - 1 if nodes else None, message=message, sampled=sampled))


def _text(message: Any) -> str:
    """A user turn as text: it is one, or several messages."""
    if isinstance(message, str):
        return message
    return "\n\n".join(vf.types.content_text(part.content) for part in message)
