"""Formats of the moves in TextArena's games, as far as they are known before a game is played."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tasks.text.action_format import ActionFormat

BRACKETS = ActionFormat(r"\[[^\[\]\n]{1,40}\]", "one move in square brackets, as the game describes it")
LINE = ActionFormat(r"[^\n]{1,200}", "one line of text, as the game describes it")

_SPELT_OUT = 500  # most prefixes that a regex without repeated words may list


@dataclass(frozen=True)
class Moves:
    """A game's moves: words in square brackets, one from each slot.

    Attributes:
        description: for the prompt.
        slots: the possible words at each position.
        distinct: no word may occur twice.
    """

    description: str
    slots: tuple[tuple[str, ...], ...]
    distinct: bool = False

    @property
    def format(self) -> ActionFormat:
        """Their format. The regular expression excludes repeated words unless that makes it too long; structured output
        has no look-ahead."""
        beginnings = 1
        for number, words in enumerate(self.slots[:-1]):
            beginnings *= len(words) - number
        distinct = self.distinct and beginnings <= _SPELT_OUT
        regex = rf"\[{_spell(self.slots, frozenset(), distinct)}\]"
        return ActionFormat(regex, self.description, self.draw)

    def draw(self, stream: random.Random) -> str:
        """A random move."""
        chosen: list[str] = []
        for words in self.slots:
            chosen.append(stream.choice([w for w in words if not (self.distinct and w in chosen)]))
        return f"[{' '.join(chosen)}]"


def _spell(slots: tuple[tuple[str, ...], ...], used: frozenset[str], distinct: bool) -> str:
    first, *rest = slots
    words = [word for word in first if word not in used]
    if not rest:
        return _one_of(words)
    if not distinct:
        return f"{_one_of(words)} {_spell(tuple(rest), used, distinct)}"
    return "(?:" + "|".join(f"{w} {_spell(tuple(rest), used | {w}, distinct)}" for w in words) + ")"


def _one_of(words: list[str]) -> str:
    """Regular expression of any of these words, which need no escaping."""
    return f"[{''.join(words)}]" if all(len(w) == 1 for w in words) else f"(?:{'|'.join(words)})"


def _numbers(first: int, last: int) -> tuple[str, ...]:
    return tuple(str(number) for number in range(first, last + 1))


_DIRECTIONS = (("up", "down", "left", "right"),)
_DIRECTION = "a direction in square brackets: [up], [down], [left] or [right]"
_CELL = "row and column in square brackets, counted from 0, for example [3 2]"

# Class of a game -> its moves, from an instance, since variants differ in size.
MOVES: dict[str, Callable[[Any], Moves]] = {
    "FrozenLakeEnv": lambda game: Moves(_DIRECTION, _DIRECTIONS),
    "GuessTheNumberEnv": lambda game: Moves(
        "a number in square brackets, for example [5]", (_numbers(game.min_number, game.max_number),)
    ),
    "LightsOutEnv": lambda game: Moves(_CELL, (_numbers(0, game.size - 1),) * 2),
    "MastermindEnv": lambda game: Moves(
        f"{game.code_length} numbers from 1 to {game.num_numbers} in square brackets, "
        f"{'repeats allowed' if game.duplicate_numbers else 'all different'}, "
        f"for example [{' '.join(_numbers(1, game.code_length))}]",
        (_numbers(1, game.num_numbers),) * game.code_length,
        distinct=not game.duplicate_numbers,
    ),
    "MinesweeperEnv": lambda game: Moves(_CELL, (_numbers(0, game.rows - 1), _numbers(0, game.cols - 1))),
    "SokobanEnv": lambda game: Moves(_DIRECTION, _DIRECTIONS),
    "TowerOfHanoiEnv": lambda game: Moves(
        "the tower to take a disk from and the one to put it on, in square brackets, for example [A C]",
        (("A", "B", "C"),) * 2,
        distinct=True,
    ),
    "ConnectFourEnv": lambda game: Moves(
        "the number of a column in square brackets, for example [3]", (_numbers(0, game.num_cols - 1),)
    ),
    "KuhnPokerEnv": lambda game: Moves(
        "[check], [bet], [call] or [fold], as far as it is available", (("check", "bet", "call", "fold"),)
    ),
    "TicTacToeEnv": lambda game: Moves(
        "the number of a free cell in square brackets, for example [4]", (_numbers(0, 8),)
    ),
}
