"""The backup, evaluator, refiner and corrector of a world with one goal, as rules.

They replace a language model that plays these roles untrained. They read only the text of their prompt, which the
templates in `rule_templates` write, and never plan: all they know of the future is what the successor wrote or a
rollout showed.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from random import Random
from typing import Protocol

from tasks.engines.protocol import Request, ScoreRequest, Scores
from tasks.environments.forecast import Forecast, judged_optimal, mean_value, optimal_probability

TEMPLATES: Mapping[str, Path] = {
    path.stem: path for path in sorted((Path(__file__).parent / "rule_templates").glob("*.j2"))
}
_VERDICTS = {("Optimal:", " yes"): True, ("Optimal:", " no"): False}
_DISCOUNT = re.compile(r"Discount (\d(?:\.\d+)?)")
_TRIED = re.compile(
    r"(?:Action: (?P<action>\S+)|.*) \((?:(?:not )?optimal; )?value (?P<value>\d\.\d+)\)", re.DOTALL
)


class Seen(Protocol):
    """An observation, parsed."""

    @property
    def legal(self) -> Sequence[str]:
        """The actions that would be accepted."""
        ...

    @property
    def distance(self) -> int:
        """Actions to the goal if nothing is in the way."""
        ...


@dataclass(frozen=True)
class Rules:
    """The rules of one world. Call them with a request of a role other than policy and predict.

    Attributes:
        see: reads an observation; raises ValueError for another text.
        read_future: reads a future, predicted or played; None for another text.
        back_up: the description of a future, from the backup's prompt (see `field`).
        draw_ties: whether the final choice among equals is drawn by the request's seed; else it is the first.
    """

    see: Callable[[str], Seen]
    read_future: Callable[[str], Forecast | None]
    back_up: Callable[[str], Forecast]
    draw_ties: bool = False

    def __call__(self, request: Request) -> str:
        """Play the role that the first line of the prompt names.

        Raises:
            ValueError: the role has no rules, or the prompt lacks a line that its role reads.
        """
        system, prompt = request.messages[0]["content"], request.messages[-1]["content"]
        match prompt.partition("\n")[0]:
            case "back up":
                return f"Future: {self.back_up(prompt)}"
            case "evaluate":
                verdict = (
                    "yes" if judged_optimal(self._futures(prompt), self._seen(prompt).distance) else "no"
                )
                [verdict] = fields(prompt, "verdict") or [verdict]  # a prompt may give it
                value = mean_value(self._futures(prompt), _discount(system))
                return f"Optimal: {verdict}\nReason: value {value:.3f}"
            case "aggregate":
                return f"Evaluation: value {mean_value(self._futures(prompt), _discount(system)):.3f}"
            case "refine":
                return f"Action: {self._refined(prompt, Random(request.sampling.seed))}"
            case "choose":
                return str(self._best(prompt, Random(request.sampling.seed)) + 1)
            case "correct":
                return prompt.partition("\nthought: ")[2]  # unchanged: these roles write no thoughts
            case role:
                raise ValueError(
                    f"no rules for a prompt that begins with {role[:40]!r}; they play bootstrap, evaluate, refine "
                    "and correct: give policy and predict another engine (roles.policy.engine, roles.predict.engine)"
                )

    def probability_of_yes(self, request: ScoreRequest) -> float:
        """The evaluator's probability of the verdict "yes"."""
        system, prompt = request.messages[0]["content"], request.messages[-1]["content"]
        return optimal_probability(self._futures(prompt), self._seen(prompt).distance, _discount(system))

    def _refined(self, prompt: str, stream: Random) -> str:
        """Any legal action that was not tried; if all were, the one with the highest value."""
        tried = _tried(prompt)
        known = {action for action, _ in tried}
        if untried := [action for action in self._seen(prompt).legal if action not in known]:
            return stream.choice(untried)
        return tried[self._best(prompt, stream)][0]

    def _best(self, prompt: str, stream: Random) -> int:
        """The index of the best legal action tried; of the best action if none is legal."""
        legal = self._seen(prompt).legal
        ranks = [(action in legal, value) for action, value in _tried(prompt)]
        best = [number for number, rank in enumerate(ranks) if rank == max(ranks)]
        return stream.choice(best) if self.draw_ties else best[0]

    def _seen(self, prompt: str) -> Seen:
        return self.see(field(prompt, "state"))

    def _futures(self, prompt: str) -> list[Forecast | None]:
        return [self.read_future(text) for text in fields(prompt, "future")]


@dataclass(frozen=True)
class Evaluator:
    """The same rules with scores: the verdicts "yes" and "no" have the probabilities of `optimal_probability`.

    Use it for the role evaluate only. An engine that scores is asked to score every role, and the texts of the other
    roles have no probability.
    """

    rules: Rules

    def __call__(self, request: Request) -> str:
        return self.rules(request)

    def score(self, request: ScoreRequest) -> Scores:
        """Log-probability of the verdict "yes" or "no" after "Optimal:", which itself has probability 1.

        Raises:
            ValueError: the request is for another role or another text.
        """
        prompt = request.messages[-1]["content"]
        if prompt.partition("\n")[0] != "evaluate" or request.segments not in _VERDICTS:
            raise ValueError(
                "these rules score verdicts alone ('Optimal: yes' or 'Optimal: no'); give other roles an engine of "
                "their own, with the module's `rules` instead of `evaluator`"
            )
        yes = self.rules.probability_of_yes(request)
        return Scores(((0.0,), (log(yes if _VERDICTS[request.segments] else 1 - yes),)))


@dataclass(frozen=True)
class Backup:
    """The same rules with scores: the description that they write has probability 1, another one nearly none.

    Use it for the role bootstrap only, for the same reason. With several draws of (a', d') the mean over them is the
    share of the draws that lead to a description.
    """

    rules: Rules
    nearly_none: float = 1e-9

    def __call__(self, request: Request) -> str:
        return self.rules(request)

    def score(self, request: ScoreRequest) -> Scores:
        """Log-probability of a description; what stands before it has probability 1.

        Raises:
            ValueError: the request is for another role.
        """
        prompt = request.messages[-1]["content"]
        if prompt.partition("\n")[0] != "back up":
            raise ValueError(
                "these rules score descriptions alone; give other roles an engine of their own, with the module's "
                "`rules` instead of `backup`"
            )
        *before, description = request.segments
        written = str(self.rules.back_up(prompt))
        probability = 1.0 if description.strip() == written.strip() else self.nearly_none
        return Scores((*((0.0,) for _ in before), (log(probability),)))


def fields(prompt: str, name: str) -> list[str]:
    """The content of every line `name: content`."""
    return [line.removeprefix(f"{name}: ") for line in prompt.split("\n") if line.startswith(f"{name}: ")]


def field(prompt: str, name: str) -> str:
    """The content of the first line `name: content`.

    Raises:
        ValueError: there is none.
    """
    found = fields(prompt, name)
    if not found:
        raise ValueError(f"the prompt has no line '{name}: ...'; keep the environment's own template")
    return found[0]


def _discount(system: str) -> float:
    stated = _DISCOUNT.search(system)
    if stated is None:
        raise ValueError("the evaluator's prompt states no discount; keep the environment's own template")
    return float(stated[1])


def _tried(prompt: str) -> list[tuple[str, float]]:
    """The tried actions with the values that their critiques state; a text without an action is the empty action."""
    tried = []
    for line in fields(prompt, "tried"):
        found = _TRIED.fullmatch(line)
        if found is None:
            raise ValueError(
                f"a critique states no value: {line[:80]!r}; give evaluate these rules too (roles.evaluate.engine)"
            )
        tried.append((found["action"] or "", float(found["value"])))
    return tried
