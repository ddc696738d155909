"""A game of one tool, and its scripted players: guess a number by calling it. They write calls as Qwen's models do."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from schemas.rows import Split
from tasks.engines.protocol import Request
from tasks.environments.base import ActionFormat, Step, Task
from tests.support.rules import number_game, role_of

GUESS = {
    "type": "function",
    "function": {
        "name": "guess",
        "description": "Guess the number.",
        "parameters": {
            "type": "object",
            "properties": {"number": {"type": "integer"}},
            "required": ["number"],
        },
    },
}


class ToolGame:
    """The number is the task's seed. Words alone get an answer, and use up a turn of three."""

    name = "tool_game"
    instructions = "Find the number."
    action_format = ActionFormat(r"[\s\S]+", "a call as JSON, or words")
    templates: Mapping[str, Path] = {}
    replayable, markov = True, False
    tools = (GUESS,)

    def tasks(self, split: Split) -> Sequence[Task]:
        numbers = {"train": range(1, 10), "eval": range(10, 13)}.get(split, range(0))
        return [Task(f"tool_game/{number}", split, number) for number in numbers]

    async def reset(self, task: Task) -> str:
        self._number, self._left = task.seed, 3
        return "Which number is it?"

    async def step(self, action: str) -> Step:
        self._left -= 1
        try:
            call = json.loads(action)
        except json.JSONDecodeError:
            return Step("Call the tool.", done=not self._left)
        guess = call["arguments"]["number"]
        if guess == self._number:
            return Step("That is it.", reward=1.0, done=True, success=True)
        return Step("higher" if guess < self._number else "lower", done=not self._left)

    def validate(self) -> list[str]:
        return []


def player(request: Request) -> str:
    """The policy calls in its family's form, or says a word first; the refiner writes an action's text."""
    guess = 1 + request.sampling.seed % 9
    if not request.tools:
        if role_of(request) == "refine":
            assert request.messages[0]["content"].count(json.dumps([GUESS])) == 1
            return f'Thought: the middle\nAction: {{"name": "guess", "arguments": {{"number": {guess}}}}}'
        return number_game(request)
    system = request.messages[0]["content"]
    assert (
        request.tools == (GUESS,) and system == ToolGame.instructions
    )  # neither a format nor the tools again
    acted = [m for m in request.messages if m["role"] == "assistant"]
    answered = [m for m in request.messages if m["role"] == "tool"]
    called = [m for m in acted if m.get("tool_calls")]
    assert [m["tool_call_id"] for m in answered] == [m["tool_calls"][0]["id"] for m in called]
    assert all(re.fullmatch("higher|lower", m["content"]) for m in answered)
    if not acted and request.sampling.seed % 2 == 0:
        return "Hello?"
    call = json.dumps({"name": "guess", "arguments": {"number": guess}})
    return f"Let me try.\n<tool_call>\n{call}\n</tool_call>"


player.score = number_game.score  # type: ignore[attr-defined]
