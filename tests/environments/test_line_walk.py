"""The line walk: its dynamics, texts, splits, rules and exact measures."""

import asyncio
import inspect
from itertools import product
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from prompts import render
from schemas.config import EnvironmentSection
from storage.history import State
from tasks.chat.messages import Message
from tasks.chat.tokenizers import load_chat_tokenizer
from tasks.engines.protocol import Request, Sampling, ScoreRequest
from tasks.environments import UnusableEnvironment, forecast, make_environment, scripted_roles
from tasks.environments.base import Step, Task
from tasks.environments.checks import faults_of
from tasks.environments.line_walk import LineWalk, measures, roles, text
from tasks.environments.line_walk.lines import Line
from tasks.environments.line_walk.roles import evaluator, rules
from tasks.environments.line_walk.text import ACTIONS, MOVES, mean_value, read_description, read_observation
from tasks.environments.line_walk.word_model import make_word_model
from tasks.prompting.role_prompts import Attempt
from tasks.text.transcript import Transcript, write_transcript

WALK = LineWalk()
LINE = Line(cells=9, goal=5, pits=(3, 7), moves=2)
SEEN = "-3: < -4 << -5 > pit >> -1. pits -2 +2. ends -5 +3"  # cell 2 of LINE
NEXT = "-1: < pit << -3 > goal >> +1. pits -2 +2. ends -5 +3"
SPLITS = ("train", "eval", "validation")


def play(task: Task, actions: list[str]) -> tuple[str, list[Step]]:
    async def run() -> tuple[str, list[Step]]:
        environment = LineWalk()
        first = await environment.reset(task)
        return first, [await environment.step(action) for action in actions]

    return asyncio.run(run())


def tried_out(line: Line, state: int, moves: int, gamma: float) -> float:
    """The best value of any sequence of so many moves, by playing all of them."""
    values = []
    for way in product(MOVES, repeat=moves):
        cell, value = state, 0.0
        for number, move in enumerate(way):
            cell = cell + move if 0 <= cell + move < line.cells else cell
            if cell == line.goal:
                value = gamma**number
            if cell in (line.goal, *line.pits):
                break
        values.append(value)
    return max(values)


def test_an_observation_says_what_each_move_leads_to() -> None:
    assert LINE.observation(2) == SEEN
    assert LINE.observation(4) == NEXT
    assert LINE.observation(0) == "-5: < -5 << -5 > -4 >> -3. pits -2 +2. ends -5 +3"
    assert read_observation(SEEN).legal == ACTIONS
    assert WALK.legal_actions(LINE.observation(0)) == (">", ">>")
    assert WALK.legal_actions("goal") == WALK.legal_actions("pit") == ()
    assert [read_observation(LINE.observation(state)).distance for state in LINE.states] == [3, 2, 2, 1, 1, 2]
    with pytest.raises(ValueError, match="not an observation of the line walk: 'pit'"):
        read_observation("pit")


def test_an_observation_is_the_whole_state() -> None:
    lines = [line for split in SPLITS for line in WALK.lines(split)]
    seen = {line.observation(state) for line in lines for state in line.states}
    assert len(seen) == sum(len(line.states) for line in lines)


def test_an_episode_follows_the_line() -> None:
    lines = [line for split in SPLITS for line in WALK.lines(split) if line.name == "goal5pits3,7"]
    (split,) = {task.split for s in SPLITS for task in WALK.tasks(s) if "/goal5pits3,7/" in task.task_id}
    task = Task(f"{split}/goal5pits3,7/from0", split, 0)
    assert lines == [LINE]
    assert play(task, [">>", ">>", ">"]) == (
        LINE.observation(0),
        [Step(SEEN), Step(NEXT), Step("goal", reward=1.0, done=True, success=True)],
    )
    assert play(task, ["<", "<<", "sit", ">>", ">"])[1] == [
        *[Step(LINE.observation(0), valid=False)] * 3,
        Step(SEEN),
        Step("pit", done=True),
    ]


def test_exact_values_are_those_of_the_best_sequence_of_moves() -> None:
    for line in (LINE, Line(9, 0, (1, 3), 2), Line(9, 4, (0, 5), 2), *WALK.lines("eval")[::9]):
        values = line.q_star(0.8)
        for state in line.states:
            assert values[state].max() == pytest.approx(tried_out(line, state, 5, 0.8))
    assert LINE.q_star(0.8)[2] == pytest.approx([0.8**3, 0.8**3, 0.0, 0.8])
    assert np.all(LINE.q_star(0.8)[[3, 5, 7]] == 0)


@pytest.mark.parametrize(("cells", "moves", "horizon", "uniform"), [(9, 2, 8, 0.15), (15, 4, 10, 0.03)])
def test_uniform_play_rarely_succeeds_and_optimal_play_always(
    cells: int, moves: int, horizon: int, uniform: float
) -> None:
    walk = LineWalk(cells=cells, moves=moves)
    lines = walk.lines("eval")
    at_random = [measures.uniform_play(line) for line in lines]
    assert measures.success_probability(lines, at_random, horizon) == pytest.approx(uniform, abs=0.02)
    best = [measures.optimal_actions(line.q_star(walk.gamma)) for line in lines]
    shared = [table / table.sum(axis=1, keepdims=True) for table in best]
    assert measures.success_probability(lines, shared, horizon) == pytest.approx(1.0)


def test_success_is_the_mass_that_reaches_the_goal_from_every_start() -> None:
    line = Line(cells=5, goal=4, pits=(0, 2), moves=1)  # starts 1 and 3
    table = np.zeros((5, 4))
    table[1], table[3] = [0, 0, 0, 1.0], [0, 0.25, 0.5, 0]  # the rest of 3 is no move
    assert line.starts == (1, 3)
    # from 3: .5 at once, .25 by waiting, .0625 back and forth
    assert measures.success_probability([line], [table], 1) == pytest.approx((0 + 0.5) / 2)
    assert measures.success_probability([line], [table], 2) == pytest.approx((0.5 + 0.5 + 0.25 * 0.5) / 2)


def test_patterns_of_goal_and_pits_are_in_one_split() -> None:
    patterns = [{line.pattern for line in WALK.lines(split)} for split in SPLITS]
    assert [len(p) for p in patterns] == [25, 6, 6] and len(set.union(*patterns)) == 37
    assert Line(9, 5, (3, 6), 2).pattern == Line(9, 3, (2, 5), 2).pattern  # a mirror image
    tasks = {split: [task.task_id for task in WALK.tasks(split)] for split in SPLITS}
    assert {split: len(ids) for split, ids in tasks.items()} == {"train": 438, "eval": 100, "validation": 152}
    assert all(task.split == split for split in SPLITS for task in WALK.tasks(split))
    seen = [{line.observation(s) for line in WALK.lines(split) for s in line.states} for split in SPLITS]
    assert not seen[0] & seen[1] and not seen[0] & seen[2] and not seen[1] & seen[2]
    assert {line.pattern for line in LineWalk(seed=1).lines("eval")} != patterns[1]
    assert faults_of(WALK) == []


def test_starts_are_far_from_the_goal() -> None:
    near = LineWalk(train_moves=1)
    for walk, split, least in ((WALK, "eval", 2), (WALK, "train", 2), (near, "train", 1), (near, "eval", 2)):
        values = [line.q_star(0.8).max(axis=1)[list(line.starts)].max() for line in walk.lines(split)]
        assert max(values) == pytest.approx(0.8 ** (least - 1))
    with pytest.raises(
        UnusableEnvironment, match=r"the split \w+ is empty .* raise cells, or lower held_out"
    ):
        make_environment(EnvironmentSection(name="line_walk", options={"held_out": 20}))


@pytest.mark.parametrize(
    ("description", "value"),
    [
        ("> goal", 1.0),
        ("<< pit", 0.0),
        (">> -1, goal in 1", 0.8),
        ("< +12, goal in 15", 0.8**15),
        (">> -1, pit in 3", 0.0),
        (">> -1, unclear", 0.0),
    ],
)
def test_descriptions_are_read_written_and_valued(description: str, value: float) -> None:
    read = read_description(description)
    assert read is not None and str(read) == description
    assert mean_value([description], 0.8) == pytest.approx(value)
    assert text.well_formed(description, read.action) and not text.well_formed(description, "right")


@pytest.mark.parametrize(
    "description",
    ["", "goal", "> goal now", "> -1", "> -1, goal", "> -1, goal in 0", "> -1, goal in 16", "-1, goal in 2",
     "> wall, goal in 2", "> 1, goal in 2", "> -1, goal in 2.", "> pit, unclear", "> -1, goal in " + "9" * 4301],
    ids=lambda description: description[:16],
)  # fmt: skip
def test_other_texts_are_malformed(description: str) -> None:
    assert read_description(description) is None


def test_the_malformed_share_counts_futures_of_another_move() -> None:
    told = ["> goal", "<< pit", "nonsense", "> -1, unclear"]
    assert measures.malformed_share(told, [">", ">", ">", ">"]) == 0.5


def prompt(template: str, **variables: object) -> tuple[Message, ...]:
    known = {"instructions": WALK.instructions, "action_description": WALK.action_format.description}
    system, user = render(template, ("system", "user"), {**known, **variables}, WALK.templates)
    return (Message(role="system", content=system), Message(role="user", content=user))


def ask(template: str, seed: int = 0, **variables: object) -> str:
    return rules(Request(prompt(template, **variables), Sampling(seed=seed)))


def back_up(action: str, place: str, reward: float, observation: str, later: str | None) -> str:
    return ask(
        "bootstrap",
        state=State((), SEEN),
        action_text=f"Action: {action}",
        reward=reward,
        next_observation=observation,
        terminal=place in ("goal", "pit"),
        next_action=None if later is None else "Action: >",
        next_future=later,
    ).removeprefix("Future: ")


def test_the_backup_adds_one_move_to_the_next_future() -> None:
    assert back_up(">>", "-1", 0.0, NEXT, "> goal") == ">> -1, goal in 1"
    assert back_up(">>", "-1", 0.0, NEXT, "< pit") == ">> -1, pit in 1"
    assert back_up(">>", "-1", 0.0, NEXT, "<< -3, goal in 2") == ">> -1, goal in 3"
    assert back_up(">>", "-1", 0.0, NEXT, "<< -3, goal in 15") == ">> -1, unclear"
    assert back_up(">>", "-1", 0.0, NEXT, "<< -3, unclear") == ">> -1, unclear"
    assert back_up(">>", "-1", 0.0, NEXT, "to the goal") == ">> -1, unclear"
    assert back_up(">>", "-1", 0.0, NEXT, None) == ">> -1, unclear"
    assert back_up(">", "pit", 0.0, "pit", None) == "> pit"


def test_every_label_of_the_backup_is_read_back_and_exact_if_the_next_future_is() -> None:
    for line in WALK.lines("eval"):
        best = line.q_star(0.8).argmax(axis=1)
        for state, action in product(line.states, range(4)):
            cell = line.leads_to(state, action)
            place = line.place(cell)
            ended = place in ("goal", "pit")
            label = back_up(
                ACTIONS[action],
                place,
                float(place == "goal"),
                place if ended else line.observation(cell),
                None if ended else measures.exact_future(line, cell, int(best[cell]), 0.8),
            )
            assert label == measures.exact_future(line, state, action, 0.8)
            assert mean_value([label], 0.8) == pytest.approx(line.q_star(0.8)[state, action])
            assert text.well_formed(label, ACTIONS[action])


def test_the_evaluator_states_the_mean_value_and_likes_the_straight_way() -> None:
    def evaluate(*futures: str) -> str:
        return ask("evaluate", state=State((), SEEN), action_text="Action: >>", futures=futures)

    assert evaluate(">> -1, goal in 1") == "Optimal: yes\nReason: value 0.800"
    assert evaluate(">> -1, goal in 2") == "Optimal: no\nReason: value 0.640"
    assert evaluate(">> -1, goal in 1", ">> -1, unclear") == "Optimal: no\nReason: value 0.400"
    assert evaluate(">> -1, goal in 1", "?", "> pit", ">> -1, pit in 2") == "Optimal: no\nReason: value 0.200"
    rollout = write_transcript(Transcript((NEXT, "goal"), (">",), "success", 1.0))
    assert evaluate(rollout) == evaluate(">> -1, goal in 1")
    asked = prompt("evaluate", state=State((), SEEN), action_text="Action: >>", futures=[">> -1, goal in 1"])
    assert evaluator.score(ScoreRequest(asked, ("Optimal:", " yes"))).segments[1][0] == pytest.approx(
        np.log(0.999)
    )


def tried(**values: float) -> list[Attempt]:
    names = dict(zip(("l", "ll", "r", "rr"), ACTIONS, strict=True))
    return [Attempt(f"Action: {names[n]}", False, f"value {value:.3f}") for n, value in values.items()]


def test_the_refiner_draws_any_untried_legal_move() -> None:
    corner = State((), LINE.observation(0))
    drawn = [ask("refine", seed, state=State((), SEEN), attempts=tried(rr=0.9)) for seed in range(60)]
    assert {drawn.count(f"Action: {action}") > 10 for action in ACTIONS[:3]} == {True}
    assert ask("refine", state=corner, attempts=tried(r=0.2)) == "Action: >>"
    assert ask("refine", state=corner, attempts=tried(l=0.9, r=0.2, rr=0.1)) == "Action: >"


def test_the_choice_is_the_highest_value_and_drawn_among_equals() -> None:
    def choose(seed: int, **values: float) -> str:
        return ask("choose", seed, state=State((), SEEN), attempts=tried(**values))

    assert {choose(seed, l=0.2, r=0.4, rr=0.1) for seed in range(9)} == {"2"}
    equals = [choose(seed, l=0.4, r=0.1, rr=0.4) for seed in range(40)]
    assert set(equals) == {"1", "3"} and min(equals.count("1"), equals.count("3")) > 10
    assert equals[:5] == [choose(seed, l=0.4, r=0.1, rr=0.4) for seed in range(5)]
    assert {ask("choose", seed, state=State((), LINE.observation(0)), attempts=tried(l=0.9, r=0.1))
            for seed in range(9)} == {"2"}  # the first is no legal move  # fmt: skip


@pytest.mark.parametrize("module", [roles, text, scripted_roles, forecast])
def test_rules_know_neither_lines_nor_exact_values(module: ModuleType) -> None:
    source = inspect.getsource(module)
    assert "line_walk.lines" not in source and "environments.exact" not in source


def test_prompts_show_the_newest_observation_alone() -> None:
    asked = prompt("predict", state=State((), SEEN), action_text="Action: >>")
    assert [m["content"] for m in asked] == ["", f"foresee {SEEN} move >>"]
    assert [m["content"] for m in prompt("policy", observation=SEEN)] == ["", f"move? {SEEN}"]


@pytest.mark.model
def test_moves_are_single_tokens_of_smollm2_and_training_rows_are_short(real_model: Path) -> None:
    tokenizer = load_chat_tokenizer(real_model)
    assert [len(ids) for ids in tokenizer.segment_ids([f" {action}" for action in ACTIONS])] == [1, 1, 1, 1]
    for line in WALK.lines("eval")[::7]:
        for state, action in product(line.states, range(4)):
            seen, move = State((), line.observation(state)), f"Action: {ACTIONS[action]}"
            future = f"Future: {measures.exact_future(line, state, action, 0.8)}"
            asked = {
                "policy": {"observation": seen.observation},
                "predict": {"state": seen, "action_text": move},
            }
            for role, label, most in (("policy", move, 50), ("predict", future, 60)):
                shown = tokenizer.prompt_ids(prompt(role, **asked[role]))
                assert len(shown) + len(tokenizer.segment_ids([label])[0]) < most, label  # and one ends it


def test_best_actions_and_exact_futures_of_a_state() -> None:
    assert measures.best_actions(LINE, 2, 0.8) == (">>",)
    assert measures.best_actions(LINE, 0, 0.8) == (">>",)
    assert measures.best_actions(Line(9, 8, (0, 3), 2), 4, 0.8) == (">>",)
    assert measures.best_actions(Line(9, 8, (0, 2), 2), 5, 0.8) == (">", ">>")
    assert [measures.exact_future(LINE, 2, action, 0.8) for action in range(4)] == [
        "< -4, goal in 3",
        "<< -5, goal in 3",
        "> pit",
        ">> -1, goal in 1",
    ]


def test_the_word_model_writes_every_text_as_it_stands_and_its_rows_fit(tmp_path: Path) -> None:
    chat = load_chat_tokenizer(make_word_model(tmp_path, seed=0))
    longest = 0
    for line in WALK.lines("train"):
        for state, action in product(line.states, range(len(ACTIONS))):
            asked = f"foresee {line.observation(state)} move {ACTIONS[action]}"
            shown = chat.prompt_ids((Message(role="system", content=""), Message(role="user", content=asked)))
            assert chat.decode(shown) == asked
            for segments in (
                ("Future:", f" {measures.exact_future(line, state, action, WALK.gamma)}"),
                ("Action:", f" {ACTIONS[action]}"),
            ):
                ids = [token for part in chat.segment_ids(segments) for token in part]
                assert chat.decode(ids) == "".join(segments)
                assert chat.tokenizer.unk_token_id not in {*ids, *shown}
                longest = max(longest, len(shown) + len(ids) + 1)
    assert longest == 32
