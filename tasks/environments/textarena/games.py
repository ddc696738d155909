"""TextArena's games: found by id, stripped of their wrappers, and dealt from a seed."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tasks.environments.global_random import GlobalRandom
from tasks.environments.textarena.moves import BRACKETS, LINE, MOVES
from tasks.lean_imports import without
from tasks.text.action_format import ActionFormat

_WORD_GAMES = ("words", "averaged_perceptron_tagger_eng")  # NLTK data that TextArena's word games need
_ASKED_FOR = re.compile(r"nltk\.download\('([\w.-]+)'\)")
_DEALS = 8
# Missing packages and files, syntax of a newer Python, arguments that the game does not take.
_CAN_NOT_BE_MADE = (
    ArithmeticError, AttributeError, ImportError, OSError, RuntimeError, SyntaxError, TypeError, ValueError
)  # fmt: skip


@dataclass(frozen=True)
class Game:
    """Properties of a game.

    Attributes:
        players: 1 or 2.
        form: format of a move; it has `sample` if the legal spellings are known exactly.
        hosted: the game asks a hosted model of its own.
    """

    players: int
    form: ActionFormat
    hosted: bool


def look_at(game: str, settings: Mapping[str, Any]) -> Game:
    """Properties of a game, found by opening it once per process.

    Args:
        game: its id.
        settings: arguments of the game that replace those of the id.

    Raises:
        ValueError: the game is unknown, can't be constructed, lacks data, or is for more than two players.
    """
    return _look_at(game, json.dumps(settings, sort_keys=True))


@lru_cache(maxsize=64)
def _look_at(game: str, settings: str) -> Game:
    with without("scipy", "sklearn"):
        import textarena

    registered = textarena.envs.registration.ENV_REGISTRY.get(game)
    if registered is None:
        raise ValueError(f"game: TextArena {textarena.__version__} has no game '{game}'")
    try:
        with GlobalRandom(0):
            env = make_game(game, json.loads(settings))
            players = _players(env)
    except LookupError as error:
        missing = _ASKED_FOR.findall(str(error))
        if not missing:
            raise ValueError(_unmakeable(game, error)) from error
        needed = " ".join(dict.fromkeys([*missing, *_WORD_GAMES]))
        raise ValueError(
            f"game: {game} needs the NLTK data '{missing[0]}', which is not installed; install what TextArena's "
            f"word games need with: python -m nltk.downloader {needed}"
        ) from error
    except _CAN_NOT_BE_MADE as error:
        raise ValueError(_unmakeable(game, error)) from error
    if players is None:
        raise ValueError(f"game: {game} is for more than two players; choose one for one or two")
    moves = MOVES.get(type(env).__name__)
    # TextArena wraps games whose moves are not free text so that answers are put in brackets.
    bracketed = textarena.wrappers.ActionFormattingWrapper in (registered.default_wrappers or ())
    form = moves(env).format if moves else BRACKETS if bracketed else LINE
    return Game(players, form, hasattr(env, "gamemaster"))


def _unmakeable(game: str, error: Exception) -> str:
    return f"game: TextArena can't make {game} here: {type(error).__name__}: {error}"


def _players(env: Any) -> int | None:
    """Number of players, by the type of the game's state; None for more than two."""
    import textarena

    for players in (1, 2):
        try:
            deal(env, players, seed=0)
        except (AssertionError, ValueError):  # how games refuse a number of players
            continue
        if players == 2 or isinstance(env.state, textarena.SinglePlayerState):
            return players
    return None


def make_game(game: str, settings: Mapping[str, Any]) -> Any:
    """A game without TextArena's wrappers, which rewrite observations and actions."""
    import textarena

    with _no_downloads():
        env = textarena.make(game, **settings)
    while isinstance(env, textarena.Wrapper):
        env = env.env
    return env


def deal(env: Any, players: int, seed: int) -> None:
    """Open a game from a seed, or from the next seed if the game fails on it: LightsOut divides by the number of lights
    that are on, and sometimes deals a board without any."""
    for attempt in range(_DEALS):
        try:
            env.reset(num_players=players, seed=seed + attempt)
        except ZeroDivisionError:
            if attempt + 1 == _DEALS:
                raise
        else:
            return


@contextmanager
def _no_downloads() -> Iterator[None]:
    """Keep games from downloading NLTK data, which some try with every new game; installing it is up to the user."""
    import nltk

    download = nltk.download
    nltk.download = lambda *_, **__: True
    try:
        yield
    finally:
        nltk.download = download
