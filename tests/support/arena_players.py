"""Players of TextArena's games that look at the game from inside: one that wins, one that plays to the turn limit."""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import permutations, product
from typing import Any

STEPS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
Player = Callable[[Any], Iterator[str]]


def _cross_the_lake(env: Any) -> Iterator[str]:
    grid, size = env.state.game_state["grid"], env.size
    waiting, seen = deque([((0, 0), ())]), {(0, 0)}
    while waiting:
        (row, column), path = waiting.popleft()
        if grid[row][column] == "G":
            yield from (f"[{step}]" for step in path)
            return
        for name, (down, right) in STEPS.items():
            cell = (row + down, column + right)
            inside = 0 <= cell[0] < size and 0 <= cell[1] < size
            if inside and cell not in seen and grid[cell[0]][cell[1]] != "H":
                seen.add(cell)
                waiting.append((cell, (*path, name)))


def _pace_the_lake(env: Any) -> Iterator[str]:
    there, back = ("right", "left") if env.state.game_state["grid"][0][1] != "H" else ("down", "up")
    while True:
        yield f"[{there}]"
        yield f"[{back}]"


def _break_the_code(env: Any) -> Iterator[str]:
    yield f"[{' '.join(map(str, env.state.game_state['secret_code']))}]"


def _guess_other_codes(env: Any) -> Iterator[str]:
    secret = tuple(env.state.game_state["secret_code"])
    yield from (f"[{' '.join(map(str, code))}]" for code in permutations(range(1, 7), 4) if code != secret)


def _push_the_boxes(env: Any) -> Iterator[str]:
    """Breadth first over the player's and the boxes' places."""
    fixed = env.room_fixed
    goals = {(r, c) for r, c in product(range(6), repeat=2) if fixed[r, c] == 2}
    boxes = frozenset((r, c) for r, c in product(range(6), repeat=2) if env.room_state[r, c] in (3, 4))
    start = (tuple(int(place) for place in env.player_position), boxes)
    before: dict[Any, Any] = {start: None}
    waiting = deque([start])
    while waiting:
        state = waiting.popleft()
        (row, column), boxes = state
        if boxes == goals:
            break
        for name, (down, right) in STEPS.items():
            cell, behind = (row + down, column + right), (row + 2 * down, column + 2 * right)
            if fixed[cell] == 0 or (cell in boxes and (behind in boxes or fixed[behind] == 0)):
                continue
            after = (cell, (boxes - {cell}) | {behind} if cell in boxes else boxes)
            if after not in before:
                before[after] = (state, name)
                waiting.append(after)
    path = []
    while before[state] is not None:
        state, name = before[state]
        path.append(f"[{name}]")
    yield from reversed(path)


def _pace_the_room(env: Any) -> Iterator[str]:
    opposite = {"up": "down", "down": "up", "left": "right", "right": "left"}
    row, column = env.player_position
    there = next(
        n for n, (down, right) in STEPS.items() if env.room_state[row + down, column + right] in (1, 2)
    )
    while True:
        yield f"[{there}]"
        yield f"[{opposite[there]}]"


def _stack_the_disks(env: Any) -> Iterator[str]:
    yield from ("[A C]", "[A B]", "[C B]", "[A C]", "[B A]", "[B C]", "[A C]")


def _swap_a_disk(env: Any) -> Iterator[str]:
    while True:
        yield "[A B]"
        yield "[B A]"


def _clear_the_field(env: Any) -> Iterator[str]:
    yield "[4 4]"  # mines are laid round the first cell
    for row, column in product(range(env.rows), range(env.cols)):
        if env.grid[row][column] != -1 and not env.revealed[row][column]:
            yield f"[{row} {column}]"


def _switch_all_off(env: Any) -> Iterator[str]:
    """The shortest of the solutions that pressing under each light of the row above leads to, over all first rows."""
    lights, size, solutions = env.state.game_state["grid"], env.size, []
    for first in product((False, True), repeat=size):
        grid, pressed = [list(row) for row in lights], []
        for row in range(size):
            for column in range(size):
                if first[column] if row == 0 else grid[row - 1][column]:
                    env._toggle_lights(grid, row, column)
                    pressed.append(f"[{row} {column}]")
        if not any(map(any, grid)):
            solutions.append(pressed)
    yield from min(solutions, key=len)


def _press_one_light(env: Any) -> Iterator[str]:
    while True:
        yield "[0 0]"


def _guess_it(env: Any) -> Iterator[str]:
    yield f"[{env.game_number}]"


def _guess_past_it(env: Any) -> Iterator[str]:
    yield from (f"[{number}]" for number in range(1, 21) if number != env.game_number)


WINNERS: dict[str, Player] = {
    "FrozenLake-v0": _cross_the_lake,
    "Mastermind-v0": _break_the_code,
    "Sokoban-v0": _push_the_boxes,
    "TowerOfHanoi-v0": _stack_the_disks,
    "Minesweeper-v0": _clear_the_field,
    "LightsOut-v0": _switch_all_off,
    "GuessTheNumber-v0": _guess_it,
}
LINGERERS: dict[str, Player] = {
    "FrozenLake-v0": _pace_the_lake,
    "Mastermind-v0": _guess_other_codes,
    "Sokoban-v0": _pace_the_room,
    "TowerOfHanoi-v0": _swap_a_disk,
    "Minesweeper-v0": _clear_the_field,
    "LightsOut-v0": _press_one_light,
    "GuessTheNumber-v0": _guess_past_it,
}
