"""TextArena's games for one and for two (package `textarena`), by id."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from pathlib import Path
from typing import Any

from schemas.rows import Split
from tasks.environments.base import ActionFormat, Ask, EpisodeFailed, GlobalRandom, Step, Task
from tasks.environments.textarena.games import deal, look_at, make_game
from tasks.environments.textarena.opponent import Opponent

TASKS: dict[Split, int] = {"train": 1000, "eval": 200}
# Refusals of moves that were legal: Minesweeper calls the first mine an invalid move, though nothing shown forbids it.
_LEGAL = re.compile(r"You hit a mine\b")


class TextArena:
    """A TextArena game, alone or against a model.

    The seed makes the game exactly, although TextArena draws from global random states: every episode keeps its own.
    A game's own turn limit, and a game lost by invalid moves, end the episode as done; a single invalid move is
    refused and may be followed by another. The reward is the game's own and comes at the end. Success is the full
    reward, 1, of a game for one; of a game for two, more than the opponent's.

    Args:
        game: the game's id, for instance GuessTheNumber-v0.
        action_regex: how its actions are written, where the built-in format does not fit.
        player: seat of the policy in a game for two, 0 or 1; empty: one or the other, as the task's seed has it.
        settings: arguments of the game that replace those of the id, for instance max_turns.

    Raises:
        ValueError: no such game, one that can't be made here or is for more players, or a seat that it does not have.
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
        """Take the way to ask the opponent."""
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
        """One move of whoever's turn it is; whether the game accepted it."""
        state = self._env.state
        seat = state.current_player_id
        with self._guarded(repr(action)):
            self._over, _ = self._env.step(action)
        # A game counts refused moves in a row, and ends at the second one by its `invalid_move`.
        return state.error_count == 0 and not state.game_info[seat]["invalid_move"]

    @contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        """Let the game work on its own random state.

        Raises:
            EpisodeFailed: it broke. Games are other people's code, and some fail on a rare move.
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
        """What is new to a seat since last asked, without its own moves."""
        from textarena import GAME_ID, ObservationType

        state, move = self._env.state, ObservationType.PLAYER_ACTION
        news, state.observations[seat] = state.observations[seat], []
        lines = []
        for sender, text, kind in news:
            # Some games note a move as said by the game, some mix up the order: the kind stands for the sender.
            if (kind is move and sender in (seat, GAME_ID)) or sender is move:
                continue
            lines.append(
                text.strip() if sender == GAME_ID else f"[{state.role_mapping[sender]}] {text.strip()}"
            )
        return "\n".join(lines)

    def validate(self) -> list[str]:
        """Openings and random games played twice side by side: the same both times, and every game ends."""
        from tasks.environments.textarena.validation import faults

        return faults(self)
