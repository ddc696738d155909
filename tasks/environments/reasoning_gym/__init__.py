"""Any generated single-turn task of reasoning-gym, by name; needs the package reasoning-gym."""

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import Any

from schemas.rows import Split
from tasks.environments.base import ActionFormat, EpisodeFailed, Step, Task
from tasks.environments.verifier import Verified, check_isolation, compute, verify

LONGEST = 4000  # characters of a valid answer
NONE = "no answer"  # a text that answers no question
_SCORE = "tasks.environments.reasoning_gym.score"
CHECKED = 50  # questions of each split that `validate` checks
_ONE_LINE = ActionFormat(r"[^\n]{1,200}", "the answer alone, in the form that the question asks for")
_LINES = ActionFormat(
    r"(?:[^\n]{1,120}\n){0,30}[^\n]{1,120}",
    "the answer alone, in the form that the question asks for; it may take several lines",
)


class ReasoningGym:
    """Answer a generated question in one turn; any answer ends the episode.

    A task's seed generates its question. The reward is reasoning-gym's score of the answer, 0 to 1; a score of at least
    `success_at` is a success. If the scorer hangs or crashes, the reward is 0 and the step's status says so. An answer
    that it can't parse is not valid.

    Args:
        task: reasoning-gym's name of the task, for instance gcd or chain_sum.
        config: fields of the task's own configuration, for instance {min_numbers: 2, max_numbers: 3}.
        train_tasks: number of training questions.
        eval_tasks: number of held-out questions, and of validation questions.
        success_at: smallest score that is a success.
        seconds: CPU time for generating a question, and for scoring an answer.
        allow_unisolated: score answers without isolation where this machine has none. Some scorers evaluate an answer
            as code, which then has this user's rights.

    Raises:
        ValueError: reasoning-gym has no such task, or refuses this configuration; or answers can't be scored in
            isolation, and that is not allowed.
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
        allow_unisolated: bool = False,
    ) -> None:
        self.name = f"reasoning_gym/{task}"
        self._isolated = check_isolation(self.name, allow_unisolated=allow_unisolated)
        self._task, self._config = task, dict(config or {})
        self._counts: dict[Split, int] = {"train": train_tasks, "validation": eval_tasks, "eval": eval_tasks}
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
        """The question and its stated answer, if it has one."""
        arguments = (self._task, self._config, task.seed)
        text, gold = await compute(
            f"{_SCORE}:question", *arguments, seconds=self._seconds, isolated=self._isolated
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
        return await verify(f"{_SCORE}:score", *arguments, seconds=self._seconds, isolated=self._isolated)

    def validate(self) -> list[str]:
        """Check the first questions of each split: a seed gives the same question twice, no question is in two splits,
        the stated answer (some tasks have none) is a success, and a text without an answer is not."""
        try:
            return asyncio.run(self._faults())
        except EpisodeFailed as failure:  # the first question that can't be generated
            return [f"{self.name}: {failure}"]

    async def _faults(self) -> list[str]:
        some = [task for split in self._counts for task in self.tasks(split)[:CHECKED]]
        made, again = [await asyncio.gather(*map(self._make, some)) for _ in range(2)]
        texts = {
            split: {q for t, (q, _) in zip(some, made, strict=True) if t.split == split}
            for split in self._counts
        }
        faults = [
            f"{self.name}: a question is in both splits {one} and {other}; widen its config: {text[:80]!r}"
            for one, other in combinations(texts, 2)
            for text in sorted(texts[one] & texts[other])
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
    """Whether stated answers have several lines. Imports the package, which refuses a wrong configuration here."""
    from tasks.environments.reasoning_gym.score import question

    return any("\n" in str(question(task, json.loads(config), seed)[1]) for seed in seeds)
