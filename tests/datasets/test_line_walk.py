"""What demonstrations of the line walk say is true of random play, and shows no good play."""

from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from flows.cli.main import app
from tasks.datasets.demonstrations import NEEDS, read_demonstrations
from tasks.datasets.line_walk import demonstrations
from tasks.environments.line_walk import LineWalk
from tasks.environments.line_walk.text import (
    ACTIONS,
    mean_value,
    read_description,
    read_observation,
    well_formed,
)

WALK = LineWalk()
STATES = {line.observation(state): (line, state) for line in WALK.lines("train") for state in line.states}


@pytest.fixture(scope="module")
def told() -> pl.DataFrame:
    return demonstrations(300, seed=0)


def quality(row: dict[str, object]) -> float:
    """Q* of the answered move, less the mean over the legal ones."""
    line, state = STATES[str(row["observation"])]
    values = dict(zip(ACTIONS, line.q_star(0.8)[state], strict=True))
    legal = read_observation(str(row["observation"])).legal
    return float(values[str(row["answer"])] - sum(values[a] for a in legal) / len(legal))


def test_every_role_is_shown_in_training_states(told: pl.DataFrame) -> None:
    assert dict(told.group_by("role").len().iter_rows()) == dict.fromkeys(NEEDS, 300)
    assert set(told["observation"]) <= set(STATES)
    for row in told.iter_rows(named=True):
        assert all(row[column] is not None for column in NEEDS[row["role"]])


def test_the_seed_determines_them() -> None:
    assert demonstrations(5, seed=3).equals(demonstrations(5, seed=3))
    assert not demonstrations(5, seed=3).equals(demonstrations(5, seed=4))


@pytest.mark.parametrize("role", ["policy", "refine"])
def test_moves_are_no_better_than_random(told: pl.DataFrame, role: str) -> None:
    rows = told.filter(role=role).to_dicts()
    assert sum(map(quality, rows)) / len(rows) == pytest.approx(
        0.0, abs=0.045
    )  # optimal moves: .25; standard error .015


def test_futures_are_what_was_played(told: pl.DataFrame) -> None:
    futures = told.filter(pl.col("role").is_in(["predict", "bootstrap"])).to_dicts()
    for row in futures:
        action = row["action_text"].removeprefix("Action: ")
        line, state = STATES[row["observation"]]
        place = line.place(line.leads_to(state, ACTIONS.index(action)))
        assert well_formed(row["answer"], action)
        assert row["answer"].split(",")[0] == f"{action} {place}"
    outcomes = {read_description(row["answer"]).outcome for row in futures}  # type: ignore[union-attr]
    assert outcomes == {"goal", "pit", "unclear"}


def test_a_backup_is_one_move_longer_than_the_next_future(told: pl.DataFrame) -> None:
    backups = told.filter(role="bootstrap").to_dicts()
    assert {row["next_future"] is None for row in backups} == {True, False}
    for row in backups:
        label = read_description(row["answer"])
        assert label is not None
        if row["next_future"] is None:
            assert label.outcome == row["next_observation"] and row["reward"] == (label.outcome == "goal")
        else:
            later = read_description(row["next_future"])
            assert later is not None and label.outcome == later.outcome
            assert label.steps == (later.steps + 1 if later.steps else None)


def test_critiques_state_the_mean_value_of_the_shown_futures(told: pl.DataFrame) -> None:
    judged = told.filter(role="evaluate").to_dicts()
    assert sum(row["optimal"] for row in judged) == len(judged) / 2
    for row in judged:
        assert row["answer"] == f"value {mean_value(row['futures'], 0.8):.3f}"
        assert all(well_formed(text, row["action_text"].removeprefix("Action: ")) for text in row["futures"])


def test_refined_moves_were_not_tried(told: pl.DataFrame) -> None:
    refined = told.filter(role="refine").to_dicts()
    assert {len(row["attempts"]) for row in refined} == {1, 2, 3}
    for row in refined:
        tried = [attempt["action_text"].removeprefix("Action: ") for attempt in row["attempts"]]
        assert row["answer"] not in tried and row["answer"] in read_observation(row["observation"]).legal
        assert not any(attempt["optimal"] for attempt in row["attempts"])


def test_the_command_writes_the_demonstrations_of_the_named_environment(tmp_path: Path) -> None:
    file = tmp_path / "walk.parquet"
    said = CliRunner().invoke(
        app, ["demonstrate", "--of", "line_walk", str(file), "--rows", "3", "--seed", "5"]
    )
    assert said.exit_code == 0 and said.stdout.endswith(
        "3 demonstrations each of policy, predict, bootstrap, evaluate and refine\n"
    )
    assert read_demonstrations(file).collect().equals(demonstrations(3, seed=5))
