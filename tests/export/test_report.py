"""What a report says of an iteration, on tables made by hand; each alarm with its cause, and without."""

from collections.abc import Callable
from typing import Any

import pytest

from schemas.load import PROJECT_ROOT
from schemas.rows import BellmanTarget, Row
from storage.store import Store
from tasks.export.report import Report, report_of
from tasks.export.report_pages import markdown_page, outcome_lines, terminal_page
from tests.support.committed import commit_rows
from tests.support.rows import episode, evaluation, generation, improvement, transitions

Plant = Callable[[Store], None]


def played(store: Store, iteration: int, *first_actions: str) -> list[Any]:
    """A training episode of two steps for each action that one begins with; each ends with another action."""
    episodes = [episode(n, iteration=iteration) for n, _ in enumerate(first_actions)]
    steps = [
        step.model_copy(update={"action": f"last {n}" if step.step else action})
        for n, (row, action) in enumerate(zip(episodes, first_actions, strict=True))
        for step in transitions(row)
    ]
    commit_rows(store, "rollout", iteration, {"episodes": episodes, "transitions": steps})
    return steps


def evaluated(store: Store, iteration: int, successes: int, baseline: float | None = None) -> None:
    beside = {} if baseline is None else {"baseline": "nothing", "baseline_success_rate": baseline}
    given = {"success_low": 0.1, "success_high": 0.7, **beside}
    row = evaluation("p", successes, iteration=iteration).model_copy(update=given)
    commit_rows(store, "evaluation", iteration, {"evaluations": [row]})


def judged(store: Store, *verdicts: bool) -> None:
    steps = played(store, 0, "a", "b")
    made = improvement(steps[0], "critic")["critiques"][0]
    rows: list[Row] = [
        made.model_copy(
            update={"critique_id": f"c{n}", "optimal": verdict, "yes_probability": 0.9 if verdict else n / 8}
        )
        for n, verdict in enumerate(verdicts)
    ]
    commit_rows(store, "critique", 0, {"critiques": rows})


def refined(store: Store, *changed: bool) -> None:
    steps = played(store, 0, "a", "b")
    made = improvement(steps[0], "critic")["refinements"][0]
    rows: list[Row] = [
        made.model_copy(update={"refinement_id": f"r{n}", "sample_id": f"s{n}", "changed": one})
        for n, one in enumerate(changed)
    ]
    commit_rows(store, "refinement", 0, {"refinements": rows})


def backed_up(store: Store, steps: list[Any], malformed: int = 0) -> None:
    rows: list[Row] = [
        BellmanTarget(
            run="trial", iteration=0, target_id=f"t{n}", sample_id=f"t{n}", transition_id=step.transition_id,
            terminal=False, thought="t", description="d", malformed=n < malformed,
            status="malformed" if n < malformed else "ok", generation=generation("target"),
        )
        for n, step in enumerate(steps)
    ]  # fmt: skip
    commit_rows(store, "bellman-targets", 0, {"bellman_targets": rows})


def two_iterations(store: Store, *later: str) -> None:
    played(store, 0, "a", "b", "c", "d")
    played(store, 1, *later)


ALARMS: list[tuple[str, Plant, Plant, int, str]] = [
    ("all verdicts are equal", lambda s: judged(s, False, False, False), lambda s: judged(s, False, True), 0,
     "3 actions are called not optimal; p(yes) from 0.000 to 0.250"),
    ("most refined actions are unchanged", lambda s: refined(s, False, False, True), lambda s: refined(s, False, True),
     0, "2 of 3 valid refinements are the judged action"),
    ("malformed texts above 5%", lambda s: backed_up(s, played(s, 0, *"abcdefghi"), 1),
     lambda s: backed_up(s, played(s, 0, *"abcdefghij"), 1), 0, "1 of 18 texts"),
    ("the commonest first action is more than twice as common as in iteration 0",
     lambda s: two_iterations(s, "a", "a", "a", "b"), lambda s: two_iterations(s, "a", "a", "b", "c"), 1,
     "'a' begins 75% of the training episodes, 25% in iteration 0"),
    ("the entropy of actions is below half of iteration 0's", lambda s: two_iterations(s, "a"),
     lambda s: two_iterations(s, "a", "b"), 1, "0.693 nats, 2.079 in iteration 0"),
    ("transitions never backed up above 50%", lambda s: backed_up(s, played(s, 0, *"ab")[:1]),
     lambda s: backed_up(s, played(s, 0, *"ab")[:2]), 0, "3 of 4 training transitions so far"),
    ("evaluation is below doing nothing", lambda s: evaluated(s, 0, 3, 0.4), lambda s: evaluated(s, 0, 4, 0.4), 0,
     "success 0.300, doing nothing 0.400"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "cause", "none", "iteration", "said"), ALARMS, ids=[a[0] for a in ALARMS])
def test_an_alarm_is_raised_by_its_cause_and_not_at_its_limit(
    store: Store, tmp_path: Any, name: str, cause: Plant, none: Plant, iteration: int, said: str
) -> None:
    def raised(at: Store, plant: Plant) -> dict[str, str]:
        plant(at)
        return {alarm.name: alarm.said for alarm in report_of(at, "trial", iteration).alarms}

    assert said in raised(store, cause)[name]
    assert name not in raised(Store(tmp_path / "other"), none)


def test_the_page_about_monitoring_explains_every_alarm() -> None:
    page = (PROJECT_ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    for name, *_ in ALARMS:
        assert f"| {name} | " in page


def test_the_first_lines_say_success_beside_baseline_and_the_iteration_before(store: Store) -> None:
    evaluated(store, 0, 2)
    refined(store, True, False)
    assert outcome_lines(report_of(store, "trial", 0))[:2] == [
        "success: 0.200 (0.100 to 0.700) over 10 episodes; no iteration before",
        "distilled: 2 of 2 proposals, 1 of them unchanged",
    ]
    evaluated(store, 1, 6, 0.4)
    [line] = outcome_lines(report_of(store, "trial", 1))
    assert line == (
        "success: 0.600 (0.100 to 0.700) over 10 episodes; doing nothing: 0.400; "
        "iteration 0: 0.200 (0.100 to 0.700) over 10 episodes"
    )
    assert outcome_lines(report_of(store, "trial", 2)) == [
        "success: not evaluated in this iteration; iteration 1: 0.600 (0.100 to 0.700) over 10 episodes"
    ]


def test_what_later_iterations_did_does_not_change_a_report(store: Store) -> None:
    steps = played(store, 0, "a", "b")
    backed_up(store, steps[:1])
    before = report_of(store, "trial", 0)
    later = BellmanTarget(
        run="trial", iteration=1, target_id="u", sample_id="u", transition_id=steps[1].transition_id,
        terminal=False, thought="t", description="d", malformed=True, generation=generation("target"),
    )  # fmt: skip
    commit_rows(store, "bellman-targets", 1, {"bellman_targets": [later]})
    evaluated(store, 1, 9)
    assert report_of(store, "trial", 0) == before


def test_what_a_model_wrote_is_shown_as_text(store: Store) -> None:
    two_iterations(store, *["<img src=x onerror=alert(1)> [a](http://evil)"] * 4)
    found = report_of(store, "trial", 1)
    page = markdown_page(found)
    assert "<img" not in page and "](http" not in page and "&lt;img" in page
    assert "<img" in terminal_page(found), "the terminal shows text as it is, but for control characters"


def test_a_report_of_nothing_is_a_page_without_figures(store: Store) -> None:
    commit_rows(store, "rollout", 0, {})
    found = report_of(store, "trial", 0)
    assert found.alarms == () and isinstance(found, Report)
    assert outcome_lines(found) == ["success: not evaluated in this iteration"]
    assert "rollout" in terminal_page(found)
