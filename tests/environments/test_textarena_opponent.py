"""TextArena's games for two, against a scripted opponent."""

import asyncio
import re
from collections.abc import Sequence

import pytest

from tasks.chat.messages import Message
from tasks.environments.base import Step, asks_model
from tasks.environments.textarena import TextArena


class Says:
    """An opponent that answers one text after another, and keeps what it was asked."""

    def __init__(self, *answers: str) -> None:
        self.answers, self.asked, self.items, self.regexes = list(answers), [], [], set()

    async def __call__(
        self, messages: tuple[Message, ...], *, request_key: str, regex: str | None = None
    ) -> str:
        self.asked.append(messages)
        self.items.append(request_key)
        self.regexes.add(regex)
        return self.answers.pop(0)


def play(game: TextArena, opponent: Says, actions: Sequence[str], number: int = 0) -> tuple[str, list[Step]]:
    async def run() -> tuple[str, list[Step]]:
        game.connect(opponent)
        first = await game.reset(game.tasks("eval")[number])
        return first, [await game.step(action) for action in actions]

    return asyncio.run(run())


def test_a_won_game_is_a_success_and_the_opponent_sees_its_own_side() -> None:
    opponent = Says("[3]", "I think [4] is best, not [8].")
    first, steps = play(TextArena("TicTacToe-v0", player=0), opponent, ["[0]", "[1]", "[2]"])
    assert "You are Player 0" in first and "Player 1" not in first
    assert [s.done for s in steps] == [False, False, True]
    assert "[Player 1] [3]" in steps[0].observation, "the move alone"
    assert (
        "placed their symbol (X) in cell 4" in steps[1].observation and "I think" not in steps[1].observation
    )
    end = steps[-1]
    assert (end.reward, end.success, end.valid, end.truncated) == (1.0, True, True, False)
    assert "Player 0 has won!" in end.observation

    system, told = opponent.asked[0]
    assert "against another player" in system["content"] and "free cell" in system["content"]
    assert "You are Player 1" in told["content"] and "[Player 0] [0]" in told["content"]
    assert [m["role"] for m in opponent.asked[1]] == ["system", "user", "assistant", "user"]
    assert opponent.items == ["opponent/0", "opponent/1"]
    assert opponent.regexes == {TextArena("TicTacToe-v0").action_format.regex}


def test_a_lost_game_is_done_with_reward_minus_one() -> None:
    _, steps = play(TextArena("TicTacToe-v0", player=0), Says("[3]", "[4]", "[5]"), ["[0]", "[1]", "[8]"])
    assert steps[-1].done and not steps[-1].truncated
    assert (steps[-1].reward, steps[-1].success, steps[-1].valid) == (-1.0, False, True)


def test_a_draw_is_no_success() -> None:
    _, steps = play(
        TextArena("TicTacToe-v0", player=0),
        Says("[4]", "[2]", "[3]", "[7]"),
        ["[0]", "[8]", "[6]", "[5]", "[1]"],
    )
    assert (steps[-1].done, steps[-1].reward, steps[-1].success) == (True, 0.0, False)


def test_the_second_seat_sees_what_the_first_did() -> None:
    first, steps = play(TextArena("TicTacToe-v0", player=1), Says("[4]", "[0]"), ["[8]"])
    assert "You are Player 1" in first and "[Player 0] [4]" in first
    assert "cell 0" in steps[0].observation


def test_an_answer_that_is_no_move_is_refused_once_and_then_loses() -> None:
    opponent = Says("I resign", "[4]")
    _, steps = play(TextArena("TicTacToe-v0", player=0), opponent, ["[0]"])
    assert not steps[0].done and steps[0].valid
    assert "attempted an invalid move" in opponent.asked[1][-1]["content"]
    assert "attempted an invalid move" not in steps[0].observation
    _, steps = play(TextArena("TicTacToe-v0", player=0), Says("I resign", "really"), ["[0]"])
    assert (steps[0].done, steps[0].success, steps[0].reward, steps[0].valid) == (True, True, 1.0, True)


def test_a_game_that_the_opponent_ends_before_the_first_move_ends_at_it() -> None:
    _, steps = play(TextArena("TicTacToe-v0", player=1), Says("pass", "pass"), ["[0]"])
    assert (steps[0].done, steps[0].reward, steps[0].success, steps[0].valid) == (True, 1.0, True, True)


def test_ones_own_refused_moves_are_invalid_and_cost_no_turn() -> None:
    opponent = Says("[4]")
    _, steps = play(TextArena("TicTacToe-v0", player=0), opponent, ["[9]", "[0]", "[0]", "[4]"])
    assert [s.valid for s in steps] == [False, True, False, False]
    assert len(opponent.asked) == 1
    assert (steps[-1].done, steps[-1].reward) == (True, -1.0)


def test_cards_of_the_other_seat_stay_hidden() -> None:
    opponent = Says("[check]", "[check]")
    first, _ = play(TextArena("KuhnPoker-v0", player=0, settings={"max_rounds": 1}), opponent, [])
    told = opponent.asked[0][-1]["content"]
    mine, theirs = (set(re.findall("Your card is: '(.)'", text)) for text in (first, told))
    assert len(mine) == len(theirs) == 1 and mine != theirs


def test_seats_are_dealt_by_the_task_unless_chosen() -> None:
    games = [play(TextArena("TicTacToe-v0"), Says("[4]"), [], number)[0] for number in range(12)]
    seats = {text.split("You are Player ")[1][0] for text in games}
    assert seats == {"0", "1"}


def test_only_games_for_two_need_an_environment_model_and_can_not_be_replayed() -> None:
    two, one = TextArena("TicTacToe-v0"), TextArena("FrozenLake-v0")
    assert (asks_model(two), two.replayable) == (True, False)
    assert (asks_model(one), one.replayable) == (False, True)


@pytest.mark.parametrize("name", ["TicTacToe-v0", "ConnectFour-v0", "KuhnPoker-v0", "Nim-v0", "PigDice-v0"])
def test_it_validates_without_a_model_against_a_random_opponent(name: str) -> None:
    assert TextArena(name).validate() == []
