"""An environment with an environment model, and a scripted one, for tests."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from schemas.rows import Split
from tasks.chat.messages import RequestError
from tasks.engines.protocol import Request
from tasks.environments.base import ActionFormat, Ask, Step, Task
from tests.support.rules import number_game


class Asked:
    """The model sets the task, and answers each guess with yes or no; two guesses are allowed."""

    name = "asked"
    instructions = "Guess the number."
    action_format = ActionFormat(r"\[(?:[1-9]|1[0-9]|20)\]", "a number in square brackets, for example [5]")
    templates: Mapping[str, Path] = {}
    replayable = False
    markov = False

    def connect(self, ask: Ask) -> None:
        self._ask = ask

    def tasks(self, split: Split) -> Sequence[Task]:
        return [Task(f"asked/{split}/{n}", split, n) for n in range(4)]

    async def reset(self, task: Task) -> str:
        self._turn, self._task = 0, task
        return await self._ask(({"role": "system", "content": f"open {task.task_id}"},), request_key="open")

    async def step(self, action: str) -> Step:
        self._turn += 1
        asked = ({"role": "system", "content": "answer"}, {"role": "user", "content": action})
        said = await self._ask(asked, request_key=str(self._turn), regex="yes|no")
        return Step(
            said, reward=float(said == "yes"), done=said == "yes" or self._turn == 2, success=said == "yes"
        )

    def validate(self) -> list[str]:
        return []


def speaks(request: Request) -> str:
    """Opens with a sentence that shows its seed; says yes to odd numbers; refuses to open eval task 1 and to answer
    [20]."""
    first, last = request.messages[0]["content"], request.messages[-1]["content"]
    if first == "answer":
        if last == "[20]":
            raise RequestError("no answer to twenty")
        return "yes" if int(last.strip("[]")) % 2 else "no"
    if first == "open asked/eval/1":
        raise RequestError("too tired")
    return f"Guess it. ({request.sampling.seed})"


def guesses(request: Request) -> str:
    """The scripted player, who guesses [20] in the first training task, [2] in the others, and [3] when evaluated."""
    text = number_game(request)
    if not text.startswith("Thought: halves"):
        return text
    return "Thought: even\nAction: [20]" if request.sampling.seed % 3 == 0 else "Thought: even\nAction: [2]"
