"""The backup, evaluator, refiner and corrector of the frozen lake as rules.

They replace a language model that plays these roles untrained. `rules` reads only the text of its prompt and never
plans on the map: all it knows of the future is what the successor wrote or a rollout showed. `evaluator` is the same
with a graded verdict, and `backup` the same with log-probabilities of descriptions.
"""

import re
from collections.abc import Callable, Sequence
from math import log
from random import Random

from tasks.engines.protocol import Request, ScoreRequest, Scores
from tasks.environments.frozen_lake.text import (
    Foreseen,
    Seen,
    mean_value,
    one_step_earlier,
    read_description,
    read_observation,
    write_cell,
)
from tasks.environments.frozen_lake.verdict import judged_optimal, optimal_probability

_VERDICTS = {("Optimal:", " yes"): True, ("Optimal:", " no"): False}
_DISCOUNT = re.compile(r"Discount (\d(?:\.\d+)?)")
_TRIED = re.compile(
    r"(?:Action: (?P<action>\w+)|.*) \((?:not )?optimal; value (?P<value>\d\.\d+)\)", re.DOTALL
)


def rules(request: Request) -> str:
    """Play the role that the first line of the prompt names.

    Raises:
        ValueError: the role has no rules, or the prompt lacks a line that its role reads.
    """
    system, prompt = request.messages[0]["content"], request.messages[-1]["content"]
    role = prompt.partition("\n")[0]
    if role not in _ROLES:
        raise ValueError(
            f"no rules for a prompt that begins with {role[:40]!r}; they play bootstrap, evaluate, refine and "
            "correct: give policy and predict another engine (roles.policy.engine, roles.predict.engine)"
        )
    return _ROLES[role](system, prompt, request.sampling.seed)


class Evaluator:
    """The same rules with scores: the verdicts "yes" and "no" have the probabilities of `optimal_probability`.

    Use it for the role evaluate only. An engine that scores is asked to score every role, and the texts of the other
    roles have no probability.
    """

    def __call__(self, request: Request) -> str:
        return rules(request)

    def score(self, request: ScoreRequest) -> Scores:
        """Log-probability of the verdict "yes" or "no" after "Optimal:", which itself has probability 1.

        Raises:
            ValueError: the request is for another role or another text.
        """
        system, prompt = request.messages[0]["content"], request.messages[-1]["content"]
        if prompt.partition("\n")[0] != "evaluate" or request.segments not in _VERDICTS:
            raise ValueError(
                "these rules score verdicts alone ('Optimal: yes' or 'Optimal: no'); give other roles an engine of "
                "their own (rules: tasks.environments.frozen_lake.roles:rules)"
            )
        yes = optimal_probability(_seen(prompt), _fields(prompt, "future"), _discount(system))
        return Scores(((0.0,), (log(yes if _VERDICTS[request.segments] else 1 - yes),)))


evaluator = Evaluator()


class Backup:
    """The same rules with scores: the description that they write has probability 1, another one nearly none.

    Use it for the role bootstrap only, for the same reason. With several draws of (a', d') the mean over them is the
    share of the draws that lead to a description.
    """

    NEARLY_NONE = 1e-9

    def __call__(self, request: Request) -> str:
        return rules(request)

    def score(self, request: ScoreRequest) -> Scores:
        """Log-probability of a description; what stands before it has probability 1.

        Raises:
            ValueError: the request is for another role.
        """
        system, prompt = request.messages[0]["content"], request.messages[-1]["content"]
        if prompt.partition("\n")[0] != "back up":
            raise ValueError(
                "these rules score descriptions alone; give other roles an engine of their own (rules: "
                "tasks.environments.frozen_lake.roles:rules)"
            )
        *before, description = request.segments
        written = _back_up(system, prompt, 0).removeprefix("Future:")
        probability = 1.0 if description.strip() == written.strip() else self.NEARLY_NONE
        return Scores((*((0.0,) for _ in before), (log(probability),)))


backup = Backup()


def _back_up(system: str, prompt: str, seed: int) -> str:
    """From r if the episode ended; else the next cell and the next future, one step longer."""
    foreseen = _fields(prompt, "next future")
    if not foreseen:
        return f"Future: {Foreseen('goal' if float(_field(prompt, 'reward')) > 0 else 'hole', 1, None)}"
    cell = write_cell(read_observation(_field(prompt, "next state")).agent)
    return f"Future: {one_step_earlier(cell, read_description(foreseen[0]))}"


def _evaluate(system: str, prompt: str, seed: int) -> str:
    """The verdict, with the mean value of the futures as its reason."""
    futures = _fields(prompt, "future")
    verdict = "yes" if judged_optimal(_seen(prompt), futures) else "no"
    return f"Optimal: {verdict}\nReason: value {mean_value(futures, _discount(system)):.3f}"


def _refine(system: str, prompt: str, seed: int) -> str:
    """Any legal action that was not tried; if all were, the one with the highest value."""
    tried, legal = _tried(prompt), _seen(prompt).legal
    untried = [action for action in legal if action not in {action for action, _ in tried}]
    if untried:
        return f"Action: {Random(seed).choice(untried)}"
    return f"Action: {tried[_best(tried, legal)][0]}"


def _choose(system: str, prompt: str, seed: int) -> str:
    """The number of the tried legal action with the highest value."""
    return str(_best(_tried(prompt), _seen(prompt).legal) + 1)


def _correct(system: str, prompt: str, seed: int) -> str:
    """The thought unchanged: these roles write none."""
    return prompt.partition("\nthought: ")[2]


_ROLES: dict[str, Callable[[str, str, int], str]] = {
    "back up": _back_up,
    "evaluate": _evaluate,
    "refine": _refine,
    "choose": _choose,
    "correct": _correct,
}


def _fields(prompt: str, name: str) -> list[str]:
    """The content of every line `name: content`."""
    return [line.removeprefix(f"{name}: ") for line in prompt.split("\n") if line.startswith(f"{name}: ")]


def _field(prompt: str, name: str) -> str:
    found = _fields(prompt, name)
    if not found:
        raise ValueError(f"the prompt has no line '{name}: ...'; keep the environment's own template")
    return found[0]


def _discount(system: str) -> float:
    stated = _DISCOUNT.search(system)
    if stated is None:
        raise ValueError("the evaluator's prompt states no discount; keep the environment's own template")
    return float(stated[1])


def _seen(prompt: str) -> Seen:
    return read_observation(_field(prompt, "state"))


def _tried(prompt: str) -> list[tuple[str, float]]:
    """The tried actions with the values that their critiques state; a text without an action is the empty action."""
    tried = []
    for line in _fields(prompt, "tried"):
        found = _TRIED.fullmatch(line)
        if found is None:
            raise ValueError(
                f"a critique states no value: {line[:80]!r}; give evaluate these rules too (roles.evaluate.engine)"
            )
        tried.append((found["action"] or "", float(found["value"])))
    return tried


def _best(tried: Sequence[tuple[str, float]], legal: Sequence[str]) -> int:
    """The index of the best legal action tried, the first of equals; of the best action if none is legal."""
    return max(range(len(tried)), key=lambda number: (tried[number][0] in legal, tried[number][1]))
