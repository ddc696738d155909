"""Any generated single-turn task of reasoning-gym, by its name; needs the package reasoning-gym."""

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from schemas.rows import Split
from tasks.environments.base import ActionFormat, EpisodeFailed, Step, Task
from tasks.environments.verifier import Verified, compute, verify

LONGEST = 4000  # characters of an answer; a longer one is none
NONE = "no answer"  # which is one
_SCORE = "tasks.environments.reasoning_gym.score"
CHECKED = 50  # questions of each split that `validate` makes
_ONE_LINE = ActionFormat(r"[^\n]{1,200}", "the answer alone, in the form that the question asks for")
_LINES = ActionFormat(
    r"(?:[^\n]{1,120}\n){0,30}[^\n]{1,120}",
    "the answer alone, in the form that the question asks for; it may take several lines",
)


class ReasoningGym:
    """Answer a generated question in one turn; any answer ends the episode.

    A task's seed makes its question. The reward is the score that reasoning-gym gives the answer, between 0 and 1,
    and success is one of at least `success_at`. Where its scorer hangs or ends, the reward is 0 and the step says so
    in its status; an answer that it can't read is not valid.

    Args:
        task: a name that reasoning-gym knows, for instance gcd or chain_sum.
        config: fields of that task's own configuration, for instance {min_numbers: 2, max_numbers: 3}.
        train_tasks: questions for training.
        eval_tasks: questions held out.
        success_at: the least score that is a success.
        seconds: CPU time for making a question and scoring an answer.

    Raises:
        ValueError: no such task, or it does not take this configuration.
    """

    instructions = "Answer the question. Reason in the thought; the action is the answer alone."
    templates: Mapping[str, Path] = {}
    replayable = True
    markov = False

    def __init__(
        self,
        task: str = "gcd",
        config: Mapping[str, Any] | None = None,
        train_tasks: int = 1000,
        eval_tasks: int = 200,
        success_at: float = 1.0,
        seconds: float = 20.0,
    ) -> None:
        self.name = f"reasoning_gym/{task}"
        self._task, self._config = task, dict(config or {})
        self._counts: dict[Split, int] = {"train": train_tasks, "eval": eval_tasks}
        self._success_at, self._seconds = success_at, seconds
        seeds = tuple(known.seed for known in self.tasks("eval")[:3])
        lines = _takes_lines(task, json.dumps(self._config, sort_keys=True), seeds)
        self.action_format = _LINES if lines else _ONE_LINE

    def tasks(self, split: Split) -> Sequence[Task]:
        return [self._numbered(split, number) for number in range(self._counts[split])]

    def _numbered(self, split: Split, number: int) -> Task:
        task_id = f"{self._task}/{split}/{number:04d}"
        return Task(task_id, split, int.from_bytes(hashlib.sha256(task_id.encode()).digest()[:4], "big"))

    async def _make(self, task: Task) -> tuple[str, str | None]:
        """The question and the answer stated for it, if there is one."""
        text, gold = await compute(
            f"{_SCORE}:question", self._task, self._config, task.seed, seconds=self._seconds
        )
        return text, gold

    async def reset(self, task: Task) -> str:
        self._played = task
        return (await self._make(task))[0]

    async def step(self, action: str) -> Step:
        answer = action.strip()
        if not answer or len(answer) > LONGEST:
            return Step(f"That is no answer of 1 to {LONGEST} characters.", done=True, valid=False)
        checked = await self._check(self._played, answer)
        success = checked.score >= self._success_at
        ending = f"The answer is {'right' if success else 'not right'}; score {checked.score:.2f}."
        return checked.failure or Step(ending, checked.score, done=True, success=success)

    async def _check(self, task: Task, answer: str) -> Verified:
        arguments = (self._task, self._config, task.seed, answer)
        return await verify(f"{_SCORE}:score", *arguments, seconds=self._seconds)

    def validate(self) -> list[str]:
        """The first questions of each split: a seed makes the same one twice, none is in both splits, the answer that
        the package states for it is a success (for some tasks it states none), and a text that is no answer is not."""
        try:
            return asyncio.run(self._faults())
        except EpisodeFailed as failure:  # its first question that can't be made
            return [f"{self.name}: {failure}"]

    async def _faults(self) -> list[str]:
        some = [*self.tasks("train")[:CHECKED], *self.tasks("eval")[:CHECKED]]
        made, again = [await asyncio.gather(*map(self._make, some)) for _ in range(2)]
        texts = {
            split: {q for t, (q, _) in zip(some, made, strict=True) if t.split == split}
            for split in self._counts
        }
        faults = [
            f"{self.name}: a question is in both splits; widen its config: {text[:80]!r}"
            for text in sorted(texts["train"] & texts["eval"])
        ]
        for task, (text, gold), second in zip(some, made, again, strict=True):
            found, junk = await asyncio.gather(self._check(task, gold or NONE), self._check(task, NONE))
            wrong = {
                "no question, or another one the second time": not text.strip() or text != second[0],
                f"the stated answer is no success ({found.error or found.score})": gold
                and found.score < self._success_at,
                f"the package's scorer takes {NONE!r} for a success": junk.score >= self._success_at,
            }
            faults += [f"{self.name}: {task.task_id}: {fault}" for fault, is_so in wrong.items() if is_so]
        return faults


@lru_cache(maxsize=64)
def _takes_lines(task: str, config: str, seeds: tuple[int, ...]) -> bool:
    """Whether stated answers have several lines. Here the package is imported, and refuses a configuration."""
    from tasks.environments.reasoning_gym.score import question

    return any("\n" in str(question(task, json.loads(config), seed)[1]) for seed in seeds)
