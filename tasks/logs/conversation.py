"""One logged record as an episode and its transitions.

A step holds the messages since the agent last spoke (system prompt, user, tool results) and the agent's message.
Prompts are written from the messages. The messages are also kept as JSON, from which the conversation can be restored
exactly. The reward belongs to the last step, which is `done`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import polars as pl

from schemas.rows import Episode, Transition
from tasks.environments.logged import FORMAT, NAME, Logged, action_text
from tasks.logs.records import TOO_DEEP
from tasks.logs.schema import LoggedMessage, LoggedRecord, Rejected, check_record, tool_lines
from tasks.text.formats import Action, read_action

DEEPEST = 200
"""How many levels of a record are read: whoever reads it later may have less of Python's stack left."""
_READ = {"messages", "traj", "tools", "task_id", "reward", "success"}


@dataclass(frozen=True)
class Imported:
    """An imported episode and its steps."""

    episode: Episode
    transitions: list[Transition]


@dataclass
class _Step:
    """Indices of the messages seen, of the agent's message, and of those that follow the last one."""

    seen: list[int]
    agent: int
    after: list[int]


def read_conversation(
    record: Any, number: int, *, run: str, iteration: int, tools: Sequence[Mapping[str, Any]]
) -> Imported:
    """Convert a record to an episode.

    Args:
        record: as decoded from the file.
        number: of the record in the file.
        run: the run of the rows.
        iteration: the iteration of the rows.
        tools: tool schemas for a record without its own.

    Raises:
        Rejected: the record can't be used.
    """
    if _deeper(record, DEEPEST):
        raise Rejected("too_deep", TOO_DEEP)
    try:
        return _convert(record, number, run, iteration, tools)
    except UnicodeEncodeError:
        raise Rejected("not_text", "a text holds half a surrogate pair, which is no character") from None
    except ValueError as error:
        raise Rejected("bad_field", f"a value can't be read: {error}") from error


def _deeper(value: Any, levels: int) -> bool:
    """Whether lists and objects are nested more than so many levels deep."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return inner is not None and (levels == 0 or any(_deeper(part, levels - 1) for part in inner))


def _convert(
    record: Any, number: int, run: str, iteration: int, tools: Sequence[Mapping[str, Any]]
) -> Imported:
    if isinstance(record, dict) and tools and "tools" not in record:
        checked = check_record({**record, "tools": list(tools)})
    else:
        checked = check_record(record)
    raw = [_json(message) for message in record.get("messages", record.get("traj"))]
    success = checked.success if checked.success is not None else checked.reward >= 1.0
    episode_id = f"{run}/{iteration:05d}/{checked.split}/{number:07d}"
    task_id = str(number if checked.task_id is None else checked.task_id)
    version = checked.model or NAME
    f"{task_id}{version}".encode()
    steps = _steps(checked.messages)
    seen = [_observation(checked, step.seen) for step in steps]
    seen[0] = _task(checked, steps[0].seen)
    rows = []
    for n, step in enumerate(steps):
        last = n == len(steps) - 1
        text, action = _action(checked.messages[step.agent])
        rows.append(
            Transition(
                run=run,
                iteration=iteration,
                transition_id=f"{episode_id}/{n:03d}",
                episode_id=episode_id,
                split=checked.split,
                step=n,
                task_id=task_id,
                observation=seen[n],
                raw_action=text,
                thought=action.thought,
                action=action.action,
                action_valid=action.valid,
                next_observation=_observation(checked, step.after) if last else seen[n + 1],
                reward=checked.reward if last else 0.0,
                game_reward=checked.reward if last else 0.0,
                success=success and last,
                done=last,
                truncated=False,
                policy_version=version,
                token_ids=[],
                logprobs=[],
                messages=[raw[i] for i in [*step.seen, step.agent, *(step.after if last else [])]],
            )
        )
    episode = Episode(
        run=run,
        iteration=iteration,
        episode_id=episode_id,
        split=checked.split,
        environment=NAME,
        task_id=task_id,
        seed=0,
        policy_version=version,
        steps=len(rows),
        reward=checked.reward,
        game_reward=checked.reward,
        success=success,
        done=True,
        truncated=False,
        invalid_actions=sum(not row.action_valid for row in rows),
        tools=_json(record.get("tools") or list(tools)) if checked.tools else None,
        record=number,
        record_fields=_json({name: value for name, value in record.items() if name not in _READ}),
    )
    return Imported(episode, rows)


def _steps(messages: Sequence[LoggedMessage]) -> list[_Step]:
    steps: list[_Step] = []
    seen: list[int] = []
    for number, message in enumerate(messages):
        seen.append(number)
        if message.role == "assistant":
            steps.append(_Step(seen[:-1], number, []))
            seen = []
    steps[-1].after = seen
    return steps


def _task(record: LoggedRecord, numbers: Sequence[int]) -> str:
    """The first observation: system prompt, tools, then the user's messages."""
    prompts = [n for n in numbers if record.messages[n].role in ("system", "developer")]
    said = [n for n in numbers if n not in prompts]
    parts = [_observation(record, prompts), tool_lines(record.tools or []), _observation(record, said)]
    return "\n\n".join(filter(None, parts))


def _observation(record: LoggedRecord, numbers: Iterable[int]) -> str:
    """New messages as one text."""
    return "\n\n".join(_seen(record.messages, number) for number in numbers)


def _seen(messages: Sequence[LoggedMessage], number: int) -> str:
    message = messages[number]
    if message.role == "tool":
        return f"Result of {message.name or _called(messages[:number], message.tool_call_id)}: {message.text}"
    return f"User: {message.text}" if message.role == "user" else message.text


def _called(before: Sequence[LoggedMessage], call_id: str | None) -> str:
    """The name of the tool that a result answers."""
    calls = (call for message in reversed(before) for call in message.tool_calls or ())
    return next((call.function.name for call in calls if call.id == call_id), "a tool")


def _action(message: LoggedMessage) -> tuple[str, Action]:
    """An agent's message as the text of an action, and that text parsed."""
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    text = action_text(message.text, calls)
    text.encode()  # arguments in JSON may spell half a surrogate pair
    read = read_action(text, FORMAT)
    said = bool(calls or message.text.strip())
    return text, Action(read.thought, read.action, said and read.valid and Logged().accepts(read.action))


def logged_messages(transitions: pl.LazyFrame, episode_id: str) -> list[dict[str, Any]]:
    """The logged messages of an imported episode, unchanged.

    Raises:
        KeyError: there is no such episode, or it was not imported.
    """
    steps = transitions.filter(pl.col("episode_id") == episode_id).sort("step").select("messages").collect()
    if not steps.height or steps["messages"].null_count():
        raise KeyError(f"{episode_id}: not an imported episode of this table")
    return [json.loads(message) for step in steps["messages"] for message in step]


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=plain)
    text.encode()  # raises where it can't be stored
    return text


def plain(value: Any) -> float | str:
    """A value that JSON does not know: Parquet holds decimals, dates and bytes."""
    return float(value) if isinstance(value, Decimal) else str(value)
