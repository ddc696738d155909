"""The checked games of TextArena: formats, wins, losses by their own limit, seeds."""

import asyncio
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from schemas.config import EnvironmentSection
from tasks.environments import UnusableEnvironment, make_environment
from tasks.environments.base import EpisodeFailed, Step, Task, would_accept
from tasks.environments.textarena import TextArena
from tasks.environments.textarena.validation import draw
from tests.support.arena_players import LINGERERS, WINNERS, Player

GAMES = tuple(WINNERS)


def play(game: TextArena, task: Task, player: Player) -> list[Step]:
    """An episode to its end."""

    async def run() -> list[Step]:
        await game.reset(task)
        steps: list[Step] = []
        for action in player(game._env):
            assert re.fullmatch(game.action_format.regex, action), action
            steps.append(await game.step(action))
            if steps[-1].done:
                break
        return steps

    return asyncio.run(run())


@pytest.mark.parametrize("name", GAMES)
def test_a_won_game_is_done_with_the_games_full_reward(name: str) -> None:
    game = TextArena(name)
    steps = play(game, game.tasks("eval")[0], WINNERS[name])
    assert all(step.valid and step.reward == 0 and not step.done for step in steps[:-1])
    assert (steps[-1].done, steps[-1].success, steps[-1].reward, steps[-1].valid) == (True, True, 1.0, True)


@pytest.mark.parametrize(
    ("name", "settings", "actions", "reward"),
    [
        ("FrozenLake-v0", {}, 101, 1 / 6),  # one of six steps on the way
        ("Mastermind-v0", {}, 21, None),  # the pegs of the last guess
        ("Sokoban-v0", {}, 31, 0.0),
        ("TowerOfHanoi-v0", {}, 15, 0.0),
        ("Minesweeper-v0", {"max_turns": 2}, 3, None),  # the board ends long before its own 100
        ("LightsOut-v0", {}, 20, 0.0),  # twice ten presses leave it as it was
        ("GuessTheNumber-v0", {}, 11, None),  # how near the last guess was
    ],
)
def test_losing_by_the_games_own_limit_is_done_and_not_truncated(
    name: str, settings: dict[str, Any], actions: int, reward: float | None
) -> None:
    game = TextArena(name, settings=settings)
    steps = play(game, game.tasks("eval")[0], LINGERERS[name])
    assert len(steps) == actions
    assert all(step.valid and not step.done and not step.truncated for step in steps[:-1])
    end = steps[-1]
    assert end.done and not end.truncated and not end.success and end.valid
    assert re.search(r"turn limit|Turn limit|used all 20 moves", end.observation)
    assert 0 <= end.reward < 1
    if reward is not None:
        assert end.reward == pytest.approx(reward)


@pytest.mark.parametrize(
    ("name", "written", "not_written"),
    [
        ("FrozenLake-v0", ["[up]", "[left]"], ["up", "[north]", "[ up]"]),
        ("Mastermind-v0", ["[2 1 4 5]", "[6 5 4 3]"], ["[1 1 2 3]", "[1 2 3]", "[1 2 3 7]", "[0 1 2 3]"]),
        ("Sokoban-v0", ["[down]", "[right]"], ["[push]", "[up up]"]),
        ("TowerOfHanoi-v0", ["[A C]", "[B A]"], ["[A A]", "[A D]", "[AC]", "[A C] [A B]"]),
        ("Minesweeper-v0", ["[0 7]", "[3 2]"], ["[8 0]", "[3,2]", "[3]"]),
        ("LightsOut-v0", ["[0 4]", "[3 2]"], ["[5 0]", "[0 0 0]"]),
        ("GuessTheNumber-v0", ["[1]", "[20]"], ["[0]", "[21]", "7"]),
        ("GuessTheNumber-v0-hardcore", ["[21]", "[50]"], ["[51]"]),
        ("Mastermind-v0-extreme", ["[1 1 12 4 5 6]"], ["[13 1 1 1 1 1]"]),
        ("Minesweeper-v0-small", ["[4 4]"], ["[5 0]"]),
    ],
)
def test_the_format_holds_what_the_game_could_accept_and_no_more(
    name: str, written: list[str], not_written: list[str]
) -> None:
    form = TextArena(name).action_format
    assert all(re.fullmatch(form.regex, text) for text in written)
    assert not any(re.fullmatch(form.regex, text) for text in not_written)
    stream = random.Random(0)
    assert all(re.fullmatch(form.regex, draw(TextArena(name), stream)) for _ in range(50))


@pytest.mark.parametrize("name", GAMES)
def test_a_refused_action_may_be_followed_by_another_and_two_in_a_row_lose(name: str) -> None:
    game = TextArena(name)
    task = game.tasks("eval")[0]

    def once(env: Any) -> Iterator[str]:
        yield "[9 9 9 9 9 9]"
        yield from WINNERS[name](env)

    async def refused(actions: Iterator[str]) -> list[Step]:
        return [await game.step(action) for action in actions]

    asyncio.run(game.reset(task))
    steps = asyncio.run(refused(once(game._env)))
    assert [step.valid for step in steps[:2]] == [False, True]
    assert steps[-1].success
    asyncio.run(game.reset(task))
    first, second = asyncio.run(refused(iter(["[9 9 9 9 9 9]"] * 2)))
    assert (first.done, first.valid) == (False, False)
    assert (second.done, second.valid, second.success, second.truncated) == (True, False, False, False)


@pytest.mark.slow
@pytest.mark.parametrize("name", GAMES)
def test_it_validates_without_a_model(name: str) -> None:
    assert TextArena(name).validate() == []


def test_a_mine_is_a_legal_move_that_loses_at_the_second() -> None:
    game = TextArena("Minesweeper-v0")
    task = game.tasks("eval")[0]

    def player(env: Any) -> Iterator[str]:
        yield "[4 4]"
        mines = [(r, c) for r in range(8) for c in range(8) if env.grid[r][c] == -1]
        yield from (f"[{row} {column}]" for row, column in mines)

    steps = play(game, task, player)
    assert len(steps) == 3 and all(step.valid for step in steps)
    assert not steps[1].done and "You hit a mine" in steps[1].observation
    assert steps[2].done and not steps[2].success and steps[2].reward == 0


def test_an_action_is_accepted_where_the_past_leads() -> None:
    game = TextArena("TowerOfHanoi-v0")
    task = game.tasks("train")[0]
    assert asyncio.run(would_accept(TextArena("TowerOfHanoi-v0"), task, ["[A C]"], "", "[A B]"))
    assert not asyncio.run(
        would_accept(TextArena("TowerOfHanoi-v0"), task, ["[A C]"], "", "[B C]")
    )  # no disk
    assert not asyncio.run(
        would_accept(TextArena("TowerOfHanoi-v0"), task, ["[A C]"], "", "[A C]")
    )  # on a smaller


async def _random_game(game: TextArena, task: Task) -> list[str]:
    """What is seen in a game of random moves."""
    stream = random.Random(task.task_id)
    told = [await game.reset(task)]
    for _ in range(40):
        step = await game.step(draw(game, stream))
        told.append(repr(step))
        if step.done:
            break
    return told


def test_games_of_all_kinds_at_once_do_not_disturb_one_another_or_pythons_random() -> None:
    async def together() -> list[list[str]]:
        games = [TextArena(name) for name in GAMES for _ in range(2)]
        tasks = [game.tasks("train")[number % 2] for number, game in enumerate(games)]
        streams = [random.Random(task.task_id) for task in tasks]
        told = [[await game.reset(task)] for game, task in zip(games, tasks, strict=True)]
        playing = set(range(len(games)))
        for _ in range(40):
            for number in sorted(playing):
                step = await games[number].step(draw(games[number], streams[number]))
                told[number].append(repr(step))
                if step.done:
                    playing.remove(number)
        return told

    random.seed(7)
    np.random.seed(7)
    expected = random.getstate(), np.random.get_state()[1].tolist()
    found = asyncio.run(together())
    assert (random.getstate(), np.random.get_state()[1].tolist()) == expected
    alone = [asyncio.run(_random_game(g, g.tasks("train")[n])) for g in map(TextArena, GAMES) for n in (0, 1)]
    assert found == alone


PROBE = """
import asyncio
from tasks.environments.textarena import TextArena
from tests.environments.test_textarena_games import GAMES, _random_game
print([asyncio.run(_random_game(g, g.tasks("train")[0])) for g in map(TextArena, GAMES)])
"""


@pytest.mark.slow
def test_another_process_plays_the_same_games() -> None:
    told = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, check=True,
        env={"PYTHONPATH": ".", "PYTHONHASHSEED": "123"},
    ).stdout  # fmt: skip
    assert told.strip() == repr(
        [asyncio.run(_random_game(g, g.tasks("train")[0])) for g in map(TextArena, GAMES)]
    )


def test_another_task_is_another_game() -> None:
    for name in set(GAMES) - {"TowerOfHanoi-v0"}:  # which is always the same
        game = TextArena(name)
        told = [asyncio.run(_random_game(game, task))[:6] for task in game.tasks("train")[:4]]
        assert len({str(one) for one in told}) > 1, name


def test_a_board_that_can_not_be_dealt_is_followed_by_the_next() -> None:
    from tasks.environments.textarena.games import deal, make_game

    env = make_game("LightsOut-v0", {"size": 2})
    broken = next(seed for seed in range(10**6) if _deals_nothing(env, seed))
    deal(env, 1, broken)
    assert env._initial_on > 0


def _deals_nothing(env: Any, seed: int) -> bool:
    try:
        env.reset(num_players=1, seed=seed)
    except ZeroDivisionError:
        return True
    return False


def test_a_game_that_breaks_fails_its_episode_only() -> None:
    game = TextArena("FifteenPuzzle-v0")
    asyncio.run(game.reset(game.tasks("eval")[0]))
    solved = [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12], [13, 14, 15, None]]
    game._env.board[:] = [*solved[:3], [13, 14, None, 15]]
    with pytest.raises(EpisodeFailed, match=r"textarena/FifteenPuzzle-v0: the game failed on '\[left\]'"):
        asyncio.run(game.step("[left]"))  # upstream has no such ending for one player


def test_a_reward_that_is_no_number_fails_the_episode() -> None:
    game = TextArena("Countdown-v0")
    asyncio.run(game.reset(game.tasks("eval")[0]))
    asyncio.run(game.step("[nonsense]"))
    with pytest.raises(EpisodeFailed, match="ended with 'Invalid action format"):
        asyncio.run(game.step("[nonsense]"))


@pytest.mark.parametrize("name", ["Wordle-v0", "Hangman-v0", "WordLadder-v0", "DontSayIt-v0"])
def test_a_game_that_needs_nltk_data_names_it_and_downloads_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import nltk

    def download(*_: object, **__: object) -> bool:
        raise AssertionError("a download was tried")

    monkeypatch.setattr(nltk, "download", download)
    monkeypatch.setattr(nltk.data, "path", [])
    section = EnvironmentSection(name="textarena", options={"game": name})
    with pytest.raises(UnusableEnvironment) as failed:
        make_environment(section)
    assert f"game: {name} needs the NLTK data 'words'" in str(failed.value)
    assert "python -m nltk.downloader words averaged_perceptron_tagger_eng" in str(failed.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"game": "Codenames-v1"}, r"game: TextArena [\d.]+ has no game 'Codenames-v1'"),
        ({"game": "SecretMafia-v0"}, "game: SecretMafia-v0 is for more than two players"),
        ({"game": "FrozenLake-v0", "player": 1}, "player: FrozenLake-v0 has no seat 1; it is for 1"),
        (
            {"game": "FrozenLake-v0", "settings": {"colour": 1}},
            "game: TextArena can't make FrozenLake-v0 here",
        ),
    ],
)
def test_what_can_not_be_played_is_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UnusableEnvironment, match=said):
        make_environment(EnvironmentSection(name="textarena", options=options))
