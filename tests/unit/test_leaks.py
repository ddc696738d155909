"""What counts as a leak in a thought, and what does not."""

import pytest

from tasks.leaks import SOURCE_OF_TARGET, SOURCE_OF_THOUGHT, find_leaks

SECRET = "The target number is lower. The agent then wins with seven."
VISIBLE = "You have to guess the number between 1 and 20. The hint was that it is not ten."


def share(thought: str) -> float:
    return find_leaks(thought, privileged=[SECRET], visible=[VISIBLE], source=SOURCE_OF_TARGET).share


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
        "The target number is lower would be one hint.",
        "If it fails, the agent then wins with seven later.",
        "Halving the range is quick.",
        "You have to guess the number between 1 and 20.",
        "",
    ],
)
def test_conjecture_and_what_the_student_sees_are_no_leak(thought: str) -> None:
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


def test_fewer_words_in_a_row_than_the_ngram_are_no_leak() -> None:
    found = find_leaks(
        "the target number rises", privileged=[SECRET], visible=[], source=SOURCE_OF_TARGET, ngram=4
    )
    assert found.share == 0.0
    found = find_leaks(
        "the target number rises", privileged=[SECRET], visible=[], source=SOURCE_OF_TARGET, ngram=3
    )
    assert found.share == pytest.approx(3 / 4)


def test_a_refined_thought_must_not_mention_its_critique() -> None:
    critique = "The answer repeats a number that was tried."
    for thought in ("The critique says to go lower.", "My previous answer was too high.", critique):
        assert find_leaks(thought, privileged=[critique], visible=[], source=SOURCE_OF_THOUGHT).share > 0
    own = find_leaks(
        "Half of the rest is seven.", privileged=[critique], visible=[], source=SOURCE_OF_THOUGHT
    )
    assert own.share == 0
