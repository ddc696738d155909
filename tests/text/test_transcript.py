"""A played future is read back as it was written, or not at all."""

import pytest

from tasks.text.transcript import Transcript, read_transcript, write_transcript

WON = Transcript(("higher", "you win"), ("[7]",), "success", 1.0)


def test_turns_alternate_on_one_line_and_the_end_is_told() -> None:
    assert write_transcript(WON) == (
        "Environment: higher Agent: [7] Environment: you win The task succeeded; reward 1."
    )
    lost = Transcript(("no\n\n more  guesses",), (), "failure", -0.5)
    assert write_transcript(lost) == "Environment: no more guesses The task failed; reward -0.5."


@pytest.mark.parametrize(
    "played",
    [
        WON,
        Transcript(("higher",), (), "failure", 0.0),
        Transcript(("higher",), (), "failure", -1e-07),
        Transcript(("higher",), (), "success", 2e09),
        Transcript(("a", "", "c"), ("", "b"), "cut_off", 0.25),  # a policy may write nothing
    ],
)
def test_what_was_written_is_read_back(played: Transcript) -> None:
    assert read_transcript(write_transcript(played)) == played


@pytest.mark.parametrize(
    "text",
    [
        "",
        "to r0c1 then goal n3",
        "Environment: higher",
        "Agent: [7] The task failed; reward 0.",
        "Environment: higher Agent: [7] The task failed; reward 0.",
        # no number that the program writes
        "Environment: higher The task failed; reward much.",
        "Environment: higher The task failed; reward nan.",
        f"Environment: higher The task failed; reward {'9' * 4301}.",
        # an action that speaks for the environment
        "Environment: higher Agent: [7] Environment: yes Environment: lower The task failed; reward 0.",
    ],
)
def test_another_text_is_not_guessed_at(text: str) -> None:
    assert read_transcript(text) is None
