"""Games of TextArena (package `textarena`) for one or two players, by id."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from pathlib import Path
from typing import Any

from schemas.rows import Split
from tasks.environments.base import ActionFormat, Ask, EpisodeFailed, Step, Task
from tasks.environments.global_random import GlobalRandom
from tasks.environments.textarena.games import deal, look_at, make_game
from tasks.environments.textarena.opponent import Opponent

TASKS: dict[Split, int] = {"train": 1000, "validation": 200, "eval": 200}
# Refusals of legal moves: Minesweeper calls the first mine an invalid move, though the board does not show it.
_LEGAL = re.compile(r"You hit a mine\b")


class TextArena:
    """A TextArena game, alone or against a model.

    The seed determines the game exactly: TextArena draws from global random states, and every episode has its own. The
    game's turn limit and a loss by invalid moves end the episode as done; a single invalid move is refused and may be
    followed by another. The reward is the game's own and comes at the end. Success is the full reward, 1, in a game for
    one, and more than the opponent's reward in a game for two.

    Args:
        game: the game's id, for instance GuessTheNumber-v0.
        action_regex: regular expression of its actions, if the built-in format does not fit.
        player: the policy's seat in a game for two, 0 or 1; by default the task's seed chooses it.
        settings: arguments of the game that replace those of the id, for instance max_turns.

    Raises:
        ValueError: the game is unknown, can't be constructed here or is for more players, or has no such seat.
    """

    templates: Mapping[str, Path] = {}
    markov = False

    def __init__(
        self,
        game: str = "GuessTheNumber-v0",
        action_regex: str | None = None,
        player: int | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.options: dict[str, Any] = {
            "game": game,
            "action_regex": action_regex,
            "player": player,
            "settings": settings,
        }
        self.game, self._settings, self._player = game, dict(settings or {}), player
        self.known = look_at(game, self._settings)
        if player is not None and player not in range(self.known.players):
            raise ValueError(f"player: {game} has no seat {player}; it is for {self.known.players}")
        self.needs_model = self.known.players == 2
        self.replayable = self.known.players == 1 and not self.known.hosted
        self.name = f"textarena/{game}"
        self.instructions = "You are playing a game. Follow its rules and try to win."
        form = self.known.form
        self.action_format = ActionFormat(action_regex, form.description) if action_regex else form

    def connect(self, ask: Ask) -> None:
        """Let the environment model play the opponent."""
        self._ask = ask

    def tasks(self, split: Split) -> Sequence[Task]:
        return [self._task(split, number) for number in range(TASKS[split])]

    def _task(self, split: Split, number: int) -> Task:
        task_id = f"{self.game}/{split}/{number:04d}"
        return Task(task_id, split, int.from_bytes(hashlib.sha256(task_id.encode()).digest()[:4], "big"))

    async def reset(self, task: Task) -> str:
        players = self.known.players
        self._random = GlobalRandom(task.seed)
        self._seat = task.seed % players if self._player is None else self._player
        self._opponent = Opponent(self._ask, self.action_format) if players == 2 else None
        self._over = False
        with self._guarded("its opening"):
            self._env: Any = make_game(self.game, self._settings)
            deal(self._env, players, task.seed)
        await self._answered()
        return self._news(self._seat)

    async def step(self, action: str) -> Step:
        accepted = self._over or self._play(action)
        await self._answered()
        seen = self._news(self._seat)
        legal = accepted or _LEGAL.search(seen) is not None
        if not self._over:
            return Step(seen, valid=legal)
        rewards, info = self._env.close()
        own, *others = (self._reward(rewards, seat) for seat in self._seats())
        ended = str(info[self._seat].get("reason") or "The game is over.")
        return Step(
            "\n".join(filter(None, [seen, ended])),
            reward=own,
            done=True,
            success=own > others[0] if others else own >= 1.0,
            valid=legal or _LEGAL.search(ended) is not None,
        )

    def _reward(self, rewards: Mapping[int, Any] | None, seat: int) -> float:
        found = (rewards or {}).get(seat)
        if not isinstance(found, Real):
            raise EpisodeFailed(f"{self.name}: the game ended with {found!r} for a reward")
        return float(found)

    def _seats(self) -> tuple[int, ...]:
        """All seats, the policy's first."""
        return (self._seat, *(seat for seat in range(self.known.players) if seat != self._seat))

    def _play(self, action: str) -> bool:
        """Play a move of the current player. Returns whether the game accepted it."""
        state = self._env.state
        seat = state.current_player_id
        with self._guarded(repr(action)):
            self._over, _ = self._env.step(action)
        # A game counts refused moves in a row; the second one ends it and sets `invalid_move`.
        return state.error_count == 0 and not state.game_info[seat]["invalid_move"]

    @contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        """Run the game's code on the episode's random state.

        Raises:
            EpisodeFailed: the game raised. Some of TextArena's games fail on a rare move.
        """
        with self._random:
            try:
                yield
            except Exception as error:
                raise EpisodeFailed(
                    f"{self.name}: the game failed on {what}: {type(error).__name__}: {error}"
                ) from error

    async def _answered(self) -> None:
        """Let the opponent move until it is the policy's turn again."""
        state = self._env.state
        while self._opponent and not self._over and state.current_player_id != self._seat:
            self._play(await self._opponent.move(self._news(state.current_player_id)))

    def _news(self, seat: int) -> str:
        """What a seat has seen since the last call, without its own moves."""
        from textarena import GAME_ID, ObservationType

        state, move = self._env.state, ObservationType.PLAYER_ACTION
        news, state.observations[seat] = state.observations[seat], []
        lines = []
        for sender, text, kind in news:
            # Some games log a move as sent by the game, and some swap the tuple: the kind is in the sender's place.
            if (kind is move and sender in (seat, GAME_ID)) or sender is move:
                continue
            lines.append(
                text.strip() if sender == GAME_ID else f"[{state.role_mapping[sender]}] {text.strip()}"
            )
        return "\n".join(lines)

    def validate(self) -> list[str]:
        """Openings and random games are the same when played twice, and every game ends."""
        from tasks.environments.textarena.validation import faults

        return faults(self)
