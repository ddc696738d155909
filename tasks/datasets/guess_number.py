"""Demonstrations of all five roles for TextArena's GuessTheNumber, told from random play.

Guesses are drawn uniformly from the numbers not tried yet, regardless of the hints, so no demonstration is good play.
What the texts say is true: thoughts state what the hints leave, descriptions how the episode continued, and critiques
whether the guess was still possible and how many numbers it could leave.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import polars as pl

from tasks.datasets.demonstrations import demonstrations_frame
from tasks.environments.guess_number import HIGHEST, HINT, LOWEST, Span
from tasks.environments.splits import played_tasks
from tasks.environments.textarena import TextArena
from tasks.seeding import derive_seed
from tasks.text.formats import write_action

ROLES = ("policy", "predict", "bootstrap", "evaluate", "refine")


@dataclass(frozen=True)
class Guess:
    """One step of a random episode.

    Attributes:
        turns: past observations and answers.
        observation: the newest observation before the guess.
        span: the numbers that the hints left before the guess.
        number: the guess.
        seen: the observation after the guess.
        hint: the hint in it; None at the end.
        won: the episode found the number.
        after: number of guesses that followed.
    """

    turns: tuple[tuple[str, str], ...]
    observation: str
    span: Span
    number: int
    seen: str
    hint: str | None
    won: bool
    after: int

    @property
    def text(self) -> str:
        return write_action(summary(self.span, self.number), f"[{self.number}]")

    @property
    def description(self) -> str:
        """The future that was played, starting with the next hint."""
        if self.hint is None:
            return "Correct, success." if self.won else "Wrong, and it was the last turn: failure."
        rest = f"found after {self.after} more" if self.won else "never found: failure"
        return f"The hint is {self.hint}; {rest}."

    @property
    def judgement(self) -> tuple[bool, str]:
        """Whether the guess is optimal (possible, and leaves the fewest numbers), and the reason."""
        if self.number not in self.span:
            return False, f"{self.number} was ruled out by the hints. Guess from {self.span}."
        if self.span.left(self.number) <= self.span.best():
            return True, f"{self.number} is possible and leaves {self.span.left(self.number)} at most."
        return (
            False,
            f"{self.number} may leave {self.span.left(self.number)} numbers. Guess nearer the middle of {self.span}.",
        )


def summary(span: Span, guess: int) -> str:
    """A thought: the numbers that the hints leave, and the guess."""
    return f"It can be {span}. I guess {guess}."


def foresight(span: Span, guess: int) -> str:
    """The thought of a prediction, from state and guess only."""
    if guess not in span:
        return f"{guess} is not possible, it can be {span}."
    return f"{guess} is possible, it can be {span}."


async def play(environment: TextArena, number: int, stream: random.Random) -> list[Guess]:
    """One episode of uniformly random guesses; a number that was tried is not a legal guess."""
    tasks = played_tasks(environment, "train")
    observation = await environment.reset(tasks[number % len(tasks)])
    steps: list[Guess] = []
    turns: tuple[tuple[str, str], ...] = ()
    span, done, success = Span(), False, False
    untried = stream.sample(range(LOWEST, HIGHEST + 1), HIGHEST - LOWEST + 1)
    while not done:
        guess = untried.pop()
        step = await environment.step(f"[{guess}]")
        found = None if step.done else HINT.search(step.observation)
        hint = found[1] if found else None
        steps.append(Guess(turns, observation, span, guess, step.observation, hint, won=False, after=0))
        turns = (*turns, (observation, write_action(summary(span, guess), f"[{guess}]")))
        span = span.after(guess, hint) if hint else span
        observation, done, success = step.observation, step.done, step.success
    return [replace(step, won=success, after=len(steps) - 1 - n) for n, step in enumerate(steps)]


def told(role: str, episode: Sequence[Guess], at: int, stream: random.Random) -> dict[str, Any]:
    """One demonstration of a role at a step of an episode; `stream` draws the refiner's guess."""
    guess = episode[at]
    row: dict[str, Any] = {
        "role": role,
        "turns": [{"observation": seen, "answer": text} for seen, text in guess.turns],
        "observation": guess.observation,
    }
    optimal, why = guess.judgement
    if role == "policy":
        return row | {"thought": summary(guess.span, guess.number), "answer": f"[{guess.number}]"}
    if role == "refine":
        better = improved(guess, stream)
        tried = [{"action_text": guess.text, "optimal": optimal, "critique": why}]
        return row | {"attempts": tried, "thought": summary(guess.span, better), "answer": f"[{better}]"}
    row["action_text"] = guess.text
    if role == "evaluate":
        return row | {"futures": [guess.description], "optimal": optimal, "answer": why}
    row |= {"thought": foresight(guess.span, guess.number), "answer": guess.description}
    if role == "bootstrap":
        row |= {"next_observation": guess.seen, "reward": float(guess.hint is None and guess.won)}
        if guess.hint is not None:
            row |= {"next_action_text": episode[at + 1].text, "next_future": episode[at + 1].description}
    return row


def improved(guess: Guess, stream: random.Random) -> int:
    """A guess that follows the critique: any possible number, or any that is nearer the middle."""
    span = guess.span
    possible = [n for n in span if n != guess.number] or [span.low]
    if guess.number in span:
        nearer = [n for n in possible if abs(n - span.middle) < abs(guess.number - span.middle)]
        possible = nearer or possible
    return stream.choice(possible)


def demonstrations(rows: int, seed: int) -> pl.DataFrame:
    """`rows` demonstrations of each role, with the columns of `tasks.datasets.demonstrations.COLUMNS`.

    Refiners see only answers judged not optimal, since refinement keeps optimal ones without a call.
    """

    async def collect() -> list[dict[str, Any]]:
        environment = TextArena("GuessTheNumber-v0")
        made: dict[str, list[dict[str, Any]]] = {role: [] for role in ROLES}
        for number in count():
            stream = random.Random(derive_seed(seed, "demonstrations", number))
            episode = await play(environment, number, stream)
            at = stream.randrange(len(episode))
            for role in ROLES:
                if len(made[role]) < rows and (role != "refine" or not episode[at].judgement[0]):
                    made[role].append(told(role, episode, at, stream))
            if all(len(of_role) == rows for of_role in made.values()):
                break
        return [row for of_role in made.values() for row in of_role]

    return demonstrations_frame(asyncio.run(collect()))
