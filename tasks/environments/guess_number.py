"""What the hints of TextArena's GuessTheNumber leave, and measures of a guess that follow from it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from storage.history import State
from tasks.text.action_format import ActionFormat
from tasks.text.formats import read_action

LOWEST, HIGHEST = 1, 20
HINT = re.compile(r"target number is (higher|lower)")
NUMBER = re.compile(r"\[(\d+)\]")


@dataclass(frozen=True)
class Span:
    """The numbers that are still possible, including both ends."""

    low: int = LOWEST
    high: int = HIGHEST

    def __contains__(self, guess: int) -> bool:
        return self.low <= guess <= self.high

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.low, self.high + 1))

    def __str__(self) -> str:
        return f"{self.low} to {self.high}"

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2

    def after(self, guess: int, hint: str) -> "Span":
        """The numbers that a hint on a guess leaves."""
        if hint == "higher":
            return Span(max(self.low, guess + 1), self.high)
        return Span(self.low, min(self.high, guess - 1))

    def left(self, guess: int) -> int:
        """The most numbers that a guess can leave."""
        return max(guess - self.low, self.high - guess)

    def best(self) -> int:
        """The smallest `left` of any guess."""
        return (self.high - self.low + 1) // 2


def guessed(text: str, form: ActionFormat) -> int:
    """The number that a policy's text guesses, read as the game reads it: the first number in brackets in the action;
    0 if there is none."""
    found = NUMBER.search(read_action(text, form).action)
    return int(found[1].lstrip("0")[:9] or 0) if found else 0  # Python refuses to read thousands of digits


def left_by_hints(state: State, form: ActionFormat) -> Span:
    """The numbers that the hints of a state leave; never one that was tried."""
    span = Span()
    answers = [*(turn.observation for turn in state.turns[1:]), state.observation]
    for turn, seen in zip(state.turns, answers, strict=False):
        if hint := HINT.search(seen):
            span = span.after(guessed(turn.text, form), hint[1])
    return span


def likelier(span: Span, guess: int) -> str:
    """The more probable hint on a guess, with the remaining numbers equally probable."""
    chances = {"higher": sum(n > guess for n in span), "lower": sum(n < guess for n in span)}
    return max(chances, key=lambda hint: chances[hint])


def possible_share(
    states: Mapping[str, State], actions: Sequence[tuple[str, str]], form: ActionFormat
) -> float:
    """The share of actions (transition_id, whole text) whose guess was still possible when it was made."""
    found = [guessed(text, form) in left_by_hints(states[identity], form) for identity, text in actions]
    return sum(found) / len(found)
