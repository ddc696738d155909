"""`nlac runs` and `nlac gc`, as a user calls them."""

import io
import json
from typing import Any

import pytest

from flows.cli.runs import COMPARE, LIST
from schemas.config import Config, ReplaySection
from schemas.load import dump_config
from storage.databases import MLFLOW
from storage.mlflow.bridge import Bridge
from storage.sql.render import render
from storage.sql.views import connect
from storage.store import Store
from tests.support.cli import nlac
from tests.support.committed import commit_rows
from tests.support.rows import evaluation


@pytest.fixture
def two(store: Store) -> Store:
    """Two evaluated runs; the second replays the first."""
    for run, successes, seed, from_runs in (("first", 2, 0, []), ("second", 6, 1, ["first"])):
        config = Config(run=run, seed=seed, replay=ReplaySection(from_runs=from_runs))
        store.set_config(run, 0, dump_config(config))
        commit_rows(store, "evaluation", 0, {"evaluations": [evaluation("p", successes, run=run)]}, run=run)
    return store


def test_runs_are_listed_and_compared_with_what_differs(two: Store) -> None:
    listed = json.loads(nlac(two, "runs", "list", "--format", "json").stdout)
    assert [(row["run"], row["iterations"], row["last_success"]) for row in listed] == [
        ("first", 1, 0.2), ("second", 1, 0.6),
    ]  # fmt: skip
    compared = nlac(two, "runs", "compare", "first", "second")
    assert compared.exit_code == 0, compared.stderr
    assert "seed: first 0, second 1" in compared.stdout and "0.6" in compared.stdout
    assert "rollout.episodes" not in compared.stdout
    told = json.loads(nlac(two, "runs", "compare", "first", "second", "--format", "json").stdout)
    assert [(row["run"], row["success_rate"]) for row in told["evaluations"]] == [
        ("first", 0.2),
        ("second", 0.6),
    ]
    assert told["differences"]["seed"] == {"first": "0", "second": "1"}
    assert nlac(two, "runs", "compare", "first").exit_code == 2
    assert "did you mean 'second'" in nlac(two, "runs", "compare", "first", "secnd").stderr


@pytest.mark.parametrize(("query", "given"), [(LIST, []), (COMPARE, [["first", "second"]])])
def test_a_terminal_of_80_columns_shows_every_column_as_a_table(
    two: Store, query: str, given: list[Any]
) -> None:
    asked, stream = connect(two).sql(query, params=given), io.BytesIO()
    render(asked, "table", stream, 80)
    lines = stream.getvalue().decode().splitlines()
    assert max(map(len, lines)) <= 80 and lines[-1].endswith(" rows)")
    head, _, rows = "\n".join(lines).partition("───")
    assert all(part in head for name in asked.columns for part in name.split("_"))
    assert "first" in rows and "second" in rows


def test_a_run_is_deleted_only_when_told_twice_and_never_while_another_replays_it(two: Store) -> None:
    refused = nlac(two, "runs", "delete", "first", "--yes")
    assert refused.exit_code == 2 and "run 'second' replays run 'first'" in refused.stderr
    assert "add --yes" in nlac(two, "runs", "delete", "second").stdout
    assert two.runs() == ["first", "second"]
    assert nlac(two, "runs", "delete", "second", "--yes").exit_code == 0
    assert two.runs() == ["first"]


def test_gc_says_what_and_how_much_and_removes_it_only_when_told(two: Store) -> None:
    old = two.committed("first", "evaluation", 0)
    assert old is not None
    again = [evaluation("p", 3, run="first")]
    commit_rows(two, "evaluation", 0, {"evaluations": again}, run="first", attempt=2)
    said = nlac(two, "gc")
    assert "superseded attempt" in said.stdout and str(old.path.relative_to(two.root)) in said.stdout
    assert "1 item," in said.stdout and "add --yes" in said.stdout and old.path.exists()
    assert "removed" in nlac(two, "gc", "--yes").stdout and not old.path.exists()
    assert nlac(two, "gc").stdout == "nothing to remove\n"


@pytest.mark.slow
def test_mlflow_forgets_a_deleted_run_and_takes_one_of_its_name_again(store: Store) -> None:
    made = commit_rows(store, "rollout", 0, {})
    bridge = Bridge(store.root)
    assert bridge.ensure_logged(made, Config(run="trial"))
    assert bridge.aliased_sources() == []
    assert nlac(store, "runs", "delete", "trial", "--yes").exit_code == 0
    again = commit_rows(store, "rollout", 0, {})
    assert Bridge(store.root).ensure_logged(again, Config(run="trial"))


def test_nothing_is_removed_on_a_host_that_can_not_ask_which_adapters_are_champions(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host with a fresh mirror has written no record of its own; those of all hosts are in the database."""
    old = commit_rows(store, "rollout", 0, {})
    commit_rows(store, "rollout", 0, {}, attempt=2)
    monkeypatch.setenv(MLFLOW, "postgresql://nlac:p@127.0.0.1:9/mlflow")
    done = nlac(store, "gc", "--yes")
    assert done.exit_code == 1 and "nothing is removed" in done.stderr and old.path.exists(), done.output
