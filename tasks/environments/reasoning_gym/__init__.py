"""Any generated single-turn task of reasoning-gym, by its name; needs the package reasoning-gym."""

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from schemas.rows import Split
from tasks.environments.base import ActionFormat, Step, Task
from tasks.environments.verifier import Verified, verify

LONGEST = 4000  # characters of an answer; a longer one is none
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
    in its status.

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
        some = (self._make(known)[1] for known in self.tasks("train")[:3])
        self.action_format = _LINES if any("\n" in str(gold) for gold in some) else _ONE_LINE

    def tasks(self, split: Split) -> Sequence[Task]:
        return [self._numbered(split, number) for number in range(self._counts[split])]

    def _numbered(self, split: Split, number: int) -> Task:
        task_id = f"{self._task}/{split}/{number:04d}"
        return Task(task_id, split, int.from_bytes(hashlib.sha256(task_id.encode()).digest()[:4], "big"))

    def _make(self, task: Task) -> tuple[str, str | None]:
        return _question(self._task, json.dumps(self._config, sort_keys=True), task.seed)

    async def reset(self, task: Task) -> str:
        self._played = task
        return self._make(task)[0]

    async def step(self, action: str) -> Step:
        answer = action.strip()
        if not answer or len(answer) > LONGEST:
            return Step(f"That is no answer of 1 to {LONGEST} characters.", done=True, valid=False)
        checked = await self._check(self._played, answer)
        success = checked.score >= self._success_at
        ending = f"The answer is {'right' if success else 'not right'}; score {checked.score:.2f}."
        return Step(
            ending if checked.status == "ok" else "The answer could not be checked.",
            checked.score,
            done=True,
            success=success and checked.status == "ok",
            status=checked.status,
            error=checked.error,
        )

    async def _check(self, task: Task, answer: str) -> Verified:
        return await verify(
            "tasks.environments.reasoning_gym.score:score",
            self._task,
            self._config,
            task.seed,
            answer,
            seconds=self._seconds,
        )

    def validate(self) -> list[str]:
        """The first questions of each split: a seed makes the same one twice, none is in both splits, and the answer
        that the package states for it is a success (for some tasks it states none)."""
        some = {split: self.tasks(split)[:CHECKED] for split in self._counts}
        made = {split: [self._make(task) for task in tasks] for split, tasks in some.items()}
        questions = {split: {question for question, _ in pairs} for split, pairs in made.items()}
        faults = [
            f"{self.name}: a question is in both splits; widen its config: {question[:80]!r}"
            for question in sorted(questions["train"] & questions["eval"])
        ]
        golden = [
            (task, question, gold)
            for split, tasks in some.items()
            for task, (question, gold) in zip(tasks, made[split], strict=True)
        ]
        _question.cache_clear()
        for task, question, _ in golden:
            if not question.strip() or self._make(task)[0] != question:
                faults.append(f"{self.name}: {task.task_id}: no question, or another one the second time")

        async def scores() -> list[Verified]:
            return await asyncio.gather(*(self._check(task, gold) for task, _, gold in golden if gold))

        stated = [task for task, _, gold in golden if gold]
        for task, found in zip(stated, asyncio.run(scores()), strict=True):
            if found.score < self._success_at:
                why = found.error or f"score {found.score:g}"
                faults.append(f"{self.name}: {task.task_id}: the stated answer is no success ({why})")
        return faults


@lru_cache(maxsize=4096)
def _question(task: str, config: str, seed: int) -> tuple[str, str | None]:
    """The question a seed makes, and the answer stated for it; the package is imported at the first."""
    from tasks.environments.reasoning_gym.score import make_question

    _, entry = make_question(task, json.loads(config), seed)
    gold = entry["answer"]
    return str(entry["question"]), gold if isinstance(gold, str) else None
