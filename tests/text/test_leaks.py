"""What counts as a leak in a thought, and what does not."""

import pytest

from benchmarks.learning.leak_check import Counts, called_leak, checks_of, count, load_cases
from schemas.config import CorrectionSection
from tasks.text.leaks import SOURCE_OF_TARGET, SOURCE_OF_THOUGHT, find_leaks

SECRET = "The target number is lower. The agent then wins with seven."
VISIBLE = "You have to guess the number between 1 and 20. The hint was that it is not ten."


def share(thought: str, *, privileged: str = SECRET, visible: str = VISIBLE, ngram: int = 4) -> float:
    found = find_leaks(
        thought, privileged=[privileged], visible=[visible], source=SOURCE_OF_TARGET, ngram=ngram
    )
    return found.share


def test_an_asserted_fact_is_a_leak_with_its_share_of_words() -> None:
    leak = find_leaks(
        "The target number is lower, so guess less.", privileged=[SECRET], visible=[], source=SOURCE_OF_TARGET
    )
    assert leak.share == pytest.approx(5 / 7)  # 'the target number is lower' of the seven words besides 'so'
    assert leak.passages == ("the target number is lower",)


@pytest.mark.parametrize(
    "thought",
    [
        "If the target number is lower, the next guess is below ten.",
        "Perhaps the target number is lower.",
        "Perhaps the target number is lower and the agent then wins with seven.",
        "The target number is lower would be one hint.",
        "If it fails, the agent then wins with seven later.",
        "Is it so that the target number is lower?",
        "Option B: the target number is lower.",
        "I don't know that the target number is lower.",
        "The target number is not lower.",
        "The next observation may be a hint.",
        "I will try seven.",
        "Halving the range is quick.",
        "You have to guess the number between 1 and 20.",
        "",
    ],
)
def test_conjecture_denial_and_what_the_student_sees_are_no_leak(thought: str) -> None:
    assert share(thought) == 0.0


@pytest.mark.parametrize(
    "thought",
    [
        "The agent then wins with seven.",
        "It might work. The target number is lower.",
        "THE TARGET NUMBER IS LOWER",
        "As given, ten is too high.",
        "The next observation shows that ten is too high.",
        "The reward is zero because ten is wrong.",
        "Maybe so, as stated.",
    ],
)
def test_assertions_and_named_sources_are_leaks(thought: str) -> None:
    assert share(thought) > 0.0


@pytest.mark.parametrize(
    "thought",
    [
        "If he agrees, fine, but the target number is lower.",
        "I would go down because the target number is lower.",
        "It could be twenty, the target number is lower.",
        'The agent says "perhaps" - the target number is lower.',
    ],
)
def test_a_condition_or_hedge_ends_where_its_clause_does(thought: str) -> None:
    assert share(thought) > 0.0


def test_words_count_in_another_order_and_inflection() -> None:
    assert (
        share("With 7 the agent won") == 0.0
    )  # 'won' is another stem; of 'win' and 7 one is left, two are needed
    assert share("7 is winning") == pytest.approx(2 / 3)
    assert share("7 is winning", visible="winning is with 7") == 0.0
    assert share("7 is a good start for winning time") == 0.0  # two of five content words


def test_fewer_words_in_a_row_than_the_ngram_are_no_leak() -> None:
    visible = "Guess the target. It is lower or higher than your number."
    assert share("the target number is small", visible=visible, ngram=5) == 0.0
    assert share("the target number is small", visible=visible, ngram=4) == pytest.approx(4 / 5)


def test_a_short_privileged_clause_is_a_leak_where_it_is_reported() -> None:
    seen = "Is it alive? No. Is it made of metal?"
    assert share("He answers yes.", privileged="Yes.", visible=seen) == pytest.approx(1 / 3)
    assert share("The answer is yes.", privileged="Yes.", visible=seen) == pytest.approx(1 / 4)
    assert share("He answered no to that.", privileged="No.", visible=seen) == 0.0  # an earlier turn
    assert share("Yes, metal is common.", privileged="Yes.", visible=seen) == 0.0


def test_a_source_that_the_student_sees_too_is_no_leak() -> None:
    assert share("The reward is 1 at the goal.", visible="The reward is 1 at the goal.") == 0.0
    assert share("The reward is 1 at the goal.") == pytest.approx(3 / 7)


def test_a_refined_thought_must_not_mention_its_critique() -> None:
    critique = "The answer repeats a number that was tried."
    for thought in ("The critique says to go lower.", "My previous answer was too high.", critique):
        assert find_leaks(thought, privileged=[critique], visible=[], source=SOURCE_OF_THOUGHT).share > 0
    own = find_leaks(
        "Half of the rest is seven.", privileged=[critique], visible=[], source=SOURCE_OF_THOUGHT
    )
    assert own.share == 0


def test_precision_and_recall_are_of_the_leaks() -> None:
    counts = Counts(true_positives=6, false_positives=2, true_negatives=9, false_negatives=4)
    assert counts.precision == pytest.approx(6 / 8)
    assert counts.recall == pytest.approx(6 / 10)


def test_planted_leaks_are_found_at_the_bars() -> None:
    cases = load_cases()
    assert len({case.id for case in cases}) == len(cases) >= 60
    assert sum(not case.leak for case in cases) >= 25
    assert len([case for case in cases if case.part == "hidden"]) >= 16
    judged = [(case, called_leak(case, CorrectionSection())) for case in cases]
    assert [c.name for c in checks_of(judged) if not c.ok] == []
    assert count(judged).false_positives + count(judged).true_negatives == sum(
        not case.leak for case in cases
    )
