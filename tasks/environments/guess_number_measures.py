"""What a guess of GuessTheNumber is worth: which numbers the hints before it left, and which hint was likelier."""

import re
from collections.abc import Mapping, Sequence

from storage.history import State
from tasks.environments.base import ActionFormat
from tasks.environments.guess_number import HINT, Span
from tasks.text.formats import read_action

NUMBER = re.compile(r"\[(\d+)\]")


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
