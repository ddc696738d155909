"""The frozen lake: gymnasium's dynamics as text, its descriptions, exact values, and the tiny model."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch

from prompts import render
from schemas.config import EngineSection, EnvironmentSection, ModelSection
from schemas.load import load_config
from storage.history import State
from tasks.chat.messages import Message
from tasks.chat.tokenizers import load_chat_tokenizer
from tasks.engines.backends import build_engine
from tasks.engines.protocol import Completion, Request, Sampling, ScoreRequest, Scores
from tasks.environments import UnusableEnvironment, make_environment
from tasks.environments.base import ListsActions, Step, Task, would_accept
from tasks.environments.frozen_lake import FrozenLake
from tasks.environments.frozen_lake.maps import generate_maps, make_lake
from tasks.environments.frozen_lake.text import (
    ACTIONS,
    Foreseen,
    read_description,
    read_observation,
    well_formed,
)
from tasks.environments.frozen_lake.word_model import make_word_model

ROWS = ("SFH", "FFF", "HFG")
START = "agent r0c0 goal r2c2 / . . / r0c2 r2c0 none"  # left and up are walls


def play(lake: FrozenLake, task: Task, actions: list[str]) -> tuple[str, list[Step]]:
    async def run() -> tuple[str, list[Step]]:
        first = await lake.reset(task)
        return first, [await lake.step(action) for action in actions]

    return asyncio.run(run())


def test_an_observation_names_agent_goal_neighbours_and_holes() -> None:
    lake = make_lake(0, ROWS, False, 3)
    assert lake.observations[0] == START
    assert lake.observations[5] == "agent r1c2 goal r2c2 . G / H r0c2 r2c0 none"  # left, down, right, up
    assert all(len(FrozenLake().lakes("eval")[0].observations[state].split()) == 14 for state in range(16))
    seen = read_observation(lake.observations[5])
    assert (seen.agent, seen.goal, seen.distance) == ((1, 2), (2, 2), 1)
    assert seen.legal == ("left", "down", "up")
    with pytest.raises(ValueError, match="not an observation of the frozen lake: 'goal'"):
        read_observation("goal")


def test_an_episode_follows_gymnasiums_dynamics() -> None:
    import gymnasium

    environment = FrozenLake(maps=8)
    actions = ["down", "right", "up", "left", "down", "right", "right", "down", "down", "right", "down"]
    for lake, task in zip(environment.lakes("eval"), environment.tasks("eval"), strict=True):
        theirs = gymnasium.make("FrozenLake-v1", desc=list(lake.rows), is_slippery=False)
        theirs.reset()
        for action, step in zip(actions, play(environment, task, actions)[1], strict=True):
            state, reward, terminated, _, _ = theirs.step(ACTIONS.index(action))
            ending = "goal" if reward else "hole"
            assert (step.reward, step.done) == (reward, terminated)
            assert step.observation == (ending if terminated else lake.observations[state])
            if terminated:
                break


def test_goal_and_hole_are_done_and_only_the_goal_is_success() -> None:
    environment = FrozenLake(size=2, maps=1, seed=0)
    lake = environment.lakes("train")[0]
    begin = environment.tasks("train")[0]
    assert begin.task_id == f"train/map{lake.seed}/r0c0"
    way = ["right", "down"] if lake.rows[0][1] == "F" else ["down", "right"]
    _, steps = play(environment, begin, way)
    assert [s.done for s in steps] == [False, True]
    assert steps[-1] == Step("goal", reward=1.0, done=True, success=True)
    holed = next(x for x in FrozenLake().lakes("eval") if x.rows[0][1] == "H" or x.rows[1][0] == "H")
    into = "right" if holed.rows[0][1] == "H" else "down"
    _, steps = play(FrozenLake(), Task(f"eval/map{holed.seed}/r0c0", "eval", 0), [into])
    assert steps == [Step("hole", done=True)]


def test_a_step_into_the_wall_or_no_direction_is_refused_and_stays() -> None:
    environment = FrozenLake()
    first, steps = play(environment, environment.tasks("eval")[0], ["up", "left", "jump"])
    assert [(s.observation, s.valid, s.done) for s in steps] == [(first, False, False)] * 3


def test_legal_actions_are_read_off_the_text_alone_and_agree_with_the_game() -> None:
    environment = FrozenLake(maps=2)
    assert isinstance(environment, ListsActions)
    assert environment.legal_actions(START) == ("down", "right")
    assert environment.legal_actions("goal") == environment.legal_actions("hole") == ()
    for task in environment.tasks("train"):
        first = play(environment, task, [])[0]
        for action in ACTIONS:
            accepted = asyncio.run(would_accept(FrozenLake(maps=2), task, [], first, action))
            assert accepted == (action in environment.legal_actions(first))


def test_slips_are_those_of_the_tasks_seed() -> None:
    environment = FrozenLake(slippery=True, maps=4)
    actions = ["down", "right"] * 6
    tasks = environment.tasks("train")
    assert all(play(environment, task, actions) == play(environment, task, actions) for task in tasks)
    slipped = [play(environment, task, ["down"])[1][0] for task in tasks]
    sure = [play(FrozenLake(maps=4), task, ["down"])[1][0] for task in tasks]
    assert slipped != sure


def test_training_starts_anywhere_evaluation_at_s_on_other_maps() -> None:
    environment = FrozenLake()
    train, held_out = environment.lakes("train"), environment.lakes("eval")
    assert (len(train), len(held_out)) == (64, 64)
    assert len({lake.rows for lake in (*train, *held_out)}) == 128
    assert all("".join(lake.rows).count("H") <= 6 for lake in (*train, *held_out))
    assert len(environment.tasks("train")) == sum(len(lake.reachable) for lake in train)
    assert [t.task_id for t in environment.tasks("eval")] == [f"eval/map{x.seed}/r0c0" for x in held_out]
    assert environment.tasks("train")[5] == FrozenLake().tasks("train")[5]
    assert environment.validate() == []
    assert not {x.seed for x in FrozenLake(seed=1).lakes("train")} & {x.seed for x in (*train, *held_out)}


def test_cells_cut_off_by_holes_are_no_starts() -> None:
    assert make_lake(0, ("SFF", "FHH", "FFG"), False, 2).reachable == (0, 3, 1, 6, 2, 7)
    assert make_lake(0, ("SHF", "FHF", "FFG"), False, 2).reachable == (0, 3, 6, 7)


def test_options_that_give_too_few_maps_are_named() -> None:
    with pytest.raises(UnusableEnvironment, match=r"environment.options: .*distinct maps of size 2"):
        make_environment(EnvironmentSection(name="frozen_lake", options={"size": 2, "maps": 4}))
    for size, density in ((1, 0.8), (4, 0.0)):
        with pytest.raises(ValueError, match="size is at least 2 and density within"):
            generate_maps(1, size, density, max_holes=4, seed=0)


def test_exact_values_by_hand() -> None:
    values = make_lake(0, ROWS, False, 3).q_star(0.8)
    assert values[5] == pytest.approx([0.64, 1.0, 0.8, 0.0])  # r1c2: left, down to G, the wall, up into H
    assert values[0].max() == pytest.approx(0.8**3)  # four actions away
    assert np.all(values[[2, 6, 8]] == 0)  # holes and goal


def test_slippery_values_solve_the_bellman_equation() -> None:
    lake = make_lake(0, ROWS, True, 3)
    values = lake.q_star(0.8)
    # r1c2 down slips left (r1c1), down (G) and right (the wall): a third each
    best = values.max(axis=1)
    assert values[5, 1] == pytest.approx((0.8 * best[4] + 1 + 0.8 * best[5]) / 3)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("goal now", 1.0),
        ("hole now", 0.0),
        ("to r1c1 then goal n2", 0.8),
        ("to r1c1 then goal n5", 0.8**4),
        ("to r1c1 then hole n3", 0.0),
        ("to r1c1 then unclear", 0.0),
    ],
)
def test_descriptions_are_read_written_and_valued(text: str, value: float) -> None:
    read = read_description(text)
    assert read is not None and str(read) == text and read.value(0.8) == pytest.approx(value)


@pytest.mark.parametrize(
    "text",
    ["", "goal", "goal now now", "to r1c1", "to r1c1 then goal", "to r1c1 then goal n1", "to r1c1 then goal n17",
     "to then goal n3", "to r1c1 then goal n3 then", "To r1c1 then goal n3", "to r1c1 then goal n" + "9" * 4301],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_other_texts_are_malformed(text: str) -> None:
    assert not well_formed(text)


def test_every_template_renders_in_few_words() -> None:
    environment = FrozenLake()
    state = State((), START)

    def user(name: str, **variables: object) -> str:
        return render(name, ("user",), {"instructions": "", **variables}, environment.templates)[0]

    assert render("policy", ("system",), {}, environment.templates) == [""]
    assert user("policy", observation=START) == f"act {START}"
    assert user("predict", state=state, action_text="Action: down") == f"foresee {START} do down"
    assert user("predict", state=state, action_text="down goal") == f"foresee {START} do down goal"
    assert render("policy", ("assistant",), {"text": "Action: up"}, environment.templates) == ["Action: up"]


def test_the_shipped_configuration_uses_the_lake_and_its_rules() -> None:
    config = load_config("configs/proofs/frozen_lake.yaml")
    assert isinstance(make_environment(config.environment), FrozenLake)
    assert config.target_moved(60) > 0.5


def ask(folder: Path, requests: list[Request], score: ScoreRequest) -> tuple[list[Completion], Scores]:
    async def run() -> tuple[list[Completion], Scores]:
        model = ModelSection(name=str(folder), dtype="float32", context_length=64, device="cpu", train="full")
        engine = build_engine(EngineSection(max_batch=512), model, folder / "cache")
        try:
            texts = await asyncio.gather(*(engine.generate(request) for request in requests))
            return list(texts), await engine.score(score)
        finally:
            await engine.close()

    return asyncio.run(run())


def test_the_tiny_model_writes_and_reads_its_texts_word_by_word(tmp_path: Path) -> None:
    folder = make_word_model(tmp_path / "model", seed=3)
    chat = load_chat_tokenizer(folder)
    observation = FrozenLake().lakes("train")[0].observations[0]
    messages = (Message(role="system", content=""), Message(role="user", content=f"act {observation}"))
    assert chat.render(messages) == f"<user> act {observation} <assistant>"
    assert len(chat.prompt_ids(messages)) == 17
    assert chat.decode(chat.prompt_ids(messages)) == f"act {observation}"
    assert chat.end_ids == [chat.tokenizer.eos_token_id] and chat.pad_id not in chat.end_ids
    for segments in (
        ("Future:", f" {Foreseen('goal', 16, 'r3c3')}"),
        ("Action:", " right"),
        ("Future:", " hole now"),
    ):
        ids = chat.segment_ids(segments)
        assert chat.decode([token for part in ids for token in part]) == "".join(segments)
        assert chat.tokenizer.unk_token_id not in ids[0] + ids[1]
    request = Request(messages, Sampling(max_tokens=8, seed=1))
    (text,), scores = ask(folder, [request], ScoreRequest(messages, ("Action:", " right")))
    assert text.prompt_tokens == 17 and len(text.token_ids) == text.completion_tokens
    assert [len(part) for part in scores.segments] == [1, 1]
    assert all(-5.5 < value < -2.5 for part in scores.segments for value in part)  # near log(1/58)


def test_the_tiny_models_seed_makes_its_weights_and_leaves_torchs_alone(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    folders = [make_word_model(tmp_path / name, seed) for name, seed in (("a", 0), ("b", 0), ("c", 1))]
    assert torch.rand(1) == expected
    files = [(folder / "model.safetensors").read_bytes() for folder in folders]
    assert files[0] == files[1] != files[2]
    weights = load_file(folders[0] / "model.safetensors")
    assert 95_000 < sum(weight.numel() for weight in weights.values()) < 105_000
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
