"""`nlac show`: every prompt it renders again is one that was asked, over a whole iteration of scripted roles."""

import json
from collections.abc import Callable

import pytest

from flows.cli.show import LISTS
from schemas.config import Config
from schemas.rows import ActionValue
from storage.files import make_folder
from storage.sql.views import connect
from storage.store import Store
from tasks.export.show import KEYS, show
from tasks.export.stored import Stored, UnknownId
from tests.support.cli import nlac
from tests.support.committed import commit_rows
from tests.support.iterations import Iterate
from tests.support.recorded import PROMPTS
from tests.support.rows import episode, improvement, training_row, transitions


@pytest.fixture
def improved(store: Store, make_config: Callable[..., Config], iterate: Iterate) -> Store:
    """An iteration with two rounds of refinement and two futures of each action."""
    PROMPTS.clear()
    improvement = {"states": 6, "futures": 2, "rounds": 2, "verdict": "written"}
    iterate(make_config("tests.support.recorded:player", improvement=improvement))
    return store


def ids(store: Store) -> dict[str, list[str]]:
    with connect(store) as database:
        return {
            model.TABLE: [row[0] for row in database.execute(f"select {key} from {model.TABLE}").fetchall()]
            for model, key in KEYS.items()
        }


def test_every_prompt_shown_is_one_that_a_role_was_asked_with(improved: Store) -> None:
    readers, stored = set(), Stored(improved, connect(improved))
    for table, known in ids(improved).items():
        assert known or table in ("sampled_actions", "td_targets"), table
        for row_id in known:
            for part in show(stored, row_id):
                assert part.text or not part.messages
                if part.messages:
                    asked = tuple((message["role"], message["content"]) for message in part.messages)
                    assert asked in PROMPTS, (row_id, part.title)
                    assert "template has changed" not in part.title
                    readers.add(part.title.split(" ")[0])
    assert readers == {"policy", "successor", "backup", "corrector", "evaluator", "refiner"}


def test_a_template_that_has_changed_since_is_said(improved: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.prompting.rendering.template_digest", lambda name, templates: "another")
    stored = Stored(improved, connect(improved))
    titles = [part.title for part in show(stored, ids(improved)["futures"][0])]
    assert "successor reads" in titles[0] and "template has changed since" in titles[0]


def test_the_command_shows_an_id_and_lists_ids_that_it_takes(improved: Store) -> None:
    refinement = next(iter(ids(improved)["refinements"]))
    shown = nlac(improved, "show", refinement)
    assert shown.exit_code == 0, shown.stderr
    titles = [
        line.removeprefix("--- ").split(",")[0] for line in shown.stdout.splitlines() if line[:4] == "--- "
    ]
    chain = ["policy reads", "fresh action", "successor reads", "successor writes", "evaluator reads"]
    assert [title for title in dict.fromkeys(titles) if title in chain] == chain, "how its action was judged"
    assert titles.index("evaluator reads") < titles.index("refiner reads") and "distilled (" in shown.stdout
    told = json.loads(nlac(improved, "show", refinement, "--format", "json").stdout)
    assert [f"--- {part['title']}" for part in told] == [
        line for line in shown.stdout.splitlines() if line.startswith("--- ")
    ]
    assert any(message["role"] == "system" for part in told for message in part["messages"])
    assert nlac(improved, "show", refinement, "--format", "csv").exit_code == 2
    known = {row_id for found in ids(improved).values() for row_id in found}
    for name in LISTS:
        listed = nlac(improved, "show", f"--{name}", "--format", "json", "--limit", "5")
        assert listed.exit_code == 0, listed.stderr
        found = json.loads(listed.stdout)
        assert len(found) <= 5 and {row["id"] for row in found} <= known
    assert json.loads(nlac(improved, "show", "--leaked", "--format", "json", "--run", "trial").stdout)


def test_lists_hold_what_they_are_named_after(store: Store) -> None:
    played = episode(status="engine_error", error="gone")
    steps = [row.model_copy(update={"action_valid": row.step == 0}) for row in transitions(played)]
    made = improvement(steps[0], "critic@00000:c")
    leaky = made["refinements"][0].model_copy(update={"leak_before": 0.5, "leak_after": 0.0})
    commit_rows(store, "rollout", 0, {"episodes": [played], "transitions": steps})
    commit_rows(store, "critique", 0, {"critiques": made["critiques"]})
    commit_rows(store, "refinement", 0, {"refinements": [leaky, made["refinements"][1]]})
    long = training_row("critic-sft", "corrected_targets", "a-label", "critic@00000:c")
    long = long.model_copy(update={"status": "too_long"})
    unrated = ActionValue(
        run="trial",
        iteration=0,
        action_id="an-action",
        sample_id="s",
        critic_version="critic@00000:c",
        status="too_long",
    )
    commit_rows(store, "critic-sft", 0, {"training_rows": [long]})
    commit_rows(store, "action-values", 0, {"action_values": [unrated]})
    found = {
        name: [row["id"] for row in json.loads(nlac(store, "show", f"--{name}", "--format", "json").stdout)]
        for name in LISTS
    }
    assert found == {
        "failed": ["a-label", "an-action", played.episode_id],
        "leaked": [leaky.refinement_id],
        "invalid": [made["refinements"][1].refinement_id, steps[1].transition_id],
        "changed": [leaky.refinement_id],
    }


def test_what_can_not_be_shown_is_refused(store: Store) -> None:
    with pytest.raises(UnknownId, match="no row has the id 'nowhere'"):
        show(Stored(store, connect(store)), "nowhere")
    make_folder(store.root)
    named = nlac(store, "show", "nowhere")
    assert named.exit_code == 2 and named.stderr.count("target_id") == 1
    assert nlac(store, "show").exit_code == 2
    assert nlac(store, "show", "some", "--failed").exit_code == 2
    unknown = nlac(store, "show", "--failed", "--run", "nope")
    assert unknown.exit_code == 2 and "no run 'nope'" in unknown.stderr
