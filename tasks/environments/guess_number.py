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
    """The numbers that are still possible, both ends included."""

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
        """What a hint on a guess leaves."""
        if hint == "higher":
            return Span(max(self.low, guess + 1), self.high)
        return Span(self.low, min(self.high, guess - 1))

    def left(self, guess: int) -> int:
        """How many numbers a guess can leave at most."""
        return max(guess - self.low, self.high - guess)

    def best(self) -> int:
        """The least of `left` over all guesses."""
        return (self.high - self.low + 1) // 2


def guessed(text: str, form: ActionFormat) -> int:
    """The number that a policy's text guesses, read as the game does: the first one in brackets of the action, whatever
    stands around it; 0 where there is none."""
    found = NUMBER.search(read_action(text, form).action)
    return int(found[1]) if found else 0


def left_by_hints(state: State, form: ActionFormat) -> Span:
    """The numbers that are still possible in a state; one that was tried never is."""
    span = Span()
    answers = [*(turn.observation for turn in state.turns[1:]), state.observation]
    for turn, seen in zip(state.turns, answers, strict=False):
        if hint := HINT.search(seen):
            span = span.after(guessed(turn.text, form), hint[1])
    return span


def likelier(span: Span, guess: int) -> str:
    """The likelier hint on a guess where these numbers are left, each as likely."""
    chances = {"higher": sum(n > guess for n in span), "lower": sum(n < guess for n in span)}
    return max(chances, key=lambda hint: chances[hint])


def possible_share(
    states: Mapping[str, State], actions: Sequence[tuple[str, str]], form: ActionFormat
) -> float:
    """Of actions (transition_id, whole text), the share whose guess the hints before it left possible."""
    found = [guessed(text, form) in left_by_hints(states[identity], form) for identity, text in actions]
    return sum(found) / len(found)
