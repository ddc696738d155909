"""Mathematics problems with one final answer, in the form of MATH and MATH-500; needs math-verify.

`problems` reads files, `score` compares answers, and `data` holds a small set of problems.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from schemas.load import find_file
from schemas.rows import Split
from tasks.environments.base import ActionFormat, Step, Task
from tasks.environments.math.problems import SHIPPED, Problem, load_problems
from tasks.environments.verifier import Verified, check_isolation, verify

HELD_OUT = 5  # without a file for evaluation, one problem in this many is held out, by its id
WRONG = "-987654321.125"  # the answer to no problem
_ENDINGS = {1.0: "The answer is correct.", 0.0: "The answer is not correct."}


class Math:
    """Solve a problem in one turn: the action is the final answer, and any answer ends the episode.

    The reward is 1 if math-verify finds the answer equal to the right one, in any form. If the verifier hangs or
    crashes, the reward is 0 and the step's status says so. An answer that it can't parse is not valid.

    Args:
        problems: .parquet or .jsonl file, by default the shipped set; see `problems.load_problems`.
        eval_problems: file of held-out problems; by default a fifth of `problems` is held out.
        levels: use only these, in both splits (MATH500-Hard: [5]).
        subjects: use only these, in both splits.
        longest: most characters of an answer; a longer one is not valid.
        seconds: CPU time for checking an answer.
        allow_unisolated: check answers without isolation where this machine has none. The parser of answers may
            evaluate them as code, which then has this user's rights.

    Raises:
        ValueError: a file can't be used, or a split has no problem left; or answers can't be checked in isolation, and
            that is not allowed.
    """

    name = "math"
    instructions = (
        "Solve the problem. Reason step by step in the thought; the action is the final answer alone."
    )
    templates: Mapping[str, Path] = {}
    replayable = True
    markov = False

    def __init__(
        self,
        problems: str | None = None,
        eval_problems: str | None = None,
        levels: Sequence[int] | None = None,
        subjects: Sequence[str] | None = None,
        longest: int = 200,
        seconds: float = 5.0,
        allow_unisolated: bool = False,
    ) -> None:
        self._isolated = check_isolation(self.name, allow_unisolated=allow_unisolated)
        named = {"problems": problems or str(SHIPPED), "eval_problems": eval_problems}
        self.files = {option: find_file(path) for option, path in named.items() if path}
        stamps = tuple(
            (path, path.stat().st_mtime_ns if path.is_file() else 0) for path in self.files.values()
        )
        self._known = _splits(
            stamps, tuple(levels) if levels else None, tuple(subjects) if subjects else None
        )
        self.action_format = ActionFormat(
            rf"[^\n]{{1,{longest}}}", "the final answer alone, plain or in LaTeX, for example \\frac{3}{4}"
        )
        self._longest, self._seconds = longest, seconds

    def problems(self, split: Split) -> Sequence[Problem]:
        """The problems of a split; validation has none of its own."""
        return list(self._known.get(split, {}).values())

    def tasks(self, split: Split) -> Sequence[Task]:
        return [Task(f"{split}/{known}", split, 0) for known in self._known.get(split, ())]

    async def reset(self, task: Task) -> str:
        self._problem = self._known[task.split][task.task_id.removeprefix(f"{task.split}/")]
        return self._problem.problem

    async def step(self, action: str) -> Step:
        answer = action.strip()
        if not answer or len(answer) > self._longest:
            return Step(f"That is no answer of 1 to {self._longest} characters.", done=True, valid=False)
        checked = await self._check(self._problem, answer)
        ending = _ENDINGS[checked.score]
        return checked.failure or Step(ending, checked.score, done=True, success=checked.score == 1.0)

    async def _check(self, problem: Problem, answer: str) -> Verified:
        return await verify(
            "tasks.environments.math.score:score",
            problem.answer,
            answer,
            seconds=self._seconds,
            isolated=self._isolated,
        )

    def validate(self) -> list[str]:
        """Every stated answer verifies and a wrong one does not, and no problem is in both splits."""

        async def faults(problem: Problem) -> list[str]:
            right, wrong = await asyncio.gather(*(self._check(problem, a) for a in (problem.answer, WRONG)))
            return [
                f"{self.name}: problem {problem.problem_id}: {fault}"
                for fault, found in (
                    (
                        f"its answer {problem.answer!r} does not verify ({right.error or 'no'})",
                        right.score != 1,
                    ),
                    (f"the wrong answer {WRONG} does ({wrong.error or 'yes'})", wrong.score or wrong.error),
                )
                if found
            ]

        async def all_faults() -> list[list[str]]:
            return await asyncio.gather(*map(faults, [*self.problems("train"), *self.problems("eval")]))

        texts = [{problem.problem for problem in self.problems(split)} for split in ("train", "eval")]
        shared = [f"{self.name}: in both splits: {text[:80]!r}" for text in sorted(texts[0] & texts[1])]
        return [fault for some in asyncio.run(all_faults()) for fault in some] + shared


@lru_cache(maxsize=8)
def _splits(
    stamps: tuple[tuple[Path, int], ...], levels: tuple[int, ...] | None, subjects: tuple[str, ...] | None
) -> Mapping[Split, Mapping[str, Problem]]:
    """Problem id -> problem for each split, from one or two files; `stamps` adds the time of their last change."""
    first, *others = (load_problems(path) for path, _ in stamps)
    named: dict[Split, Sequence[Problem]]
    if others:
        named = {"train": first, "eval": others[0]}
    else:
        held_out = [int(p.problem_id[:8], 16) % HELD_OUT == 0 for p in first]
        named = {
            "train": [p for p, held in zip(first, held_out, strict=True) if not held],
            "eval": [p for p, held in zip(first, held_out, strict=True) if held],
        }
    splits: dict[Split, Mapping[str, Problem]] = {
        split: {
            p.problem_id: p
            for p in members
            if (levels is None or p.level in levels) and (subjects is None or p.subject in subjects)
        }
        for split, members in named.items()
    }
    for split, left in splits.items():
        if not left:
            raise ValueError(
                f"no problem is left for {split}; widen levels or subjects, or give another file"
            )
    return splits
