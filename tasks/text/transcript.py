"""A played future as text: the turns of environment and agent, the ending, and the reward.

`tasks.improvement.monte_carlo` writes it, and scripted roles read it:

    Environment: OBSERVATION Agent: ACTION Environment: OBSERVATION ... The task succeeded; reward 1.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Ending = Literal["success", "failure", "cut_off"]
_SAID: dict[Ending, str] = {
    "success": "The task succeeded",
    "failure": "The task failed",
    "cut_off": "The episode was cut off before its end",
}
_ENDINGS = {said: ending for ending, said in _SAID.items()}
_NUMBER = r"-?[0-9]{1,7}(?:\.[0-9]{1,12})?(?:e[-+][0-9]{2})?"  # as the format `g` writes one
_WHOLE = re.compile(rf"(?P<turns>.*) (?P<said>{'|'.join(_ENDINGS)}); reward (?P<reward>{_NUMBER})\.")
REPLY = r"(?:^| )Environment: "  # one per step
_SPEAKER = re.compile(r"(?:^| )(Environment|Agent): ")


@dataclass(frozen=True)
class Transcript:
    """A future played from (s, a).

    Attributes:
        observations: one per step; the first answers a.
        actions: the environment actions after a, one fewer than observations.
        ending: by the task's own rules, or by a limit.
        reward: sum over the steps.
    """

    observations: Sequence[str]
    actions: Sequence[str]
    ending: Ending
    reward: float


def write_transcript(played: Transcript) -> str:
    """The transcript on one line."""
    turns = [f"Environment: {_line(played.observations[0])}"]
    for action, observation in zip(played.actions, played.observations[1:], strict=True):
        turns += [f"Agent: {_line(action)}", f"Environment: {_line(observation)}"]
    return " ".join([*turns, f"{_SAID[played.ending]}; reward {played.reward:g}."])


def read_transcript(text: str) -> Transcript | None:
    """Parse a transcript; None if the text is not one, or if a turn itself contains a speaker's name and a colon."""
    whole = _WHOLE.fullmatch(text)
    if whole is None:
        return None
    first, *turns = _SPEAKER.split(whole["turns"])
    speakers, said = turns[::2], tuple(turns[1::2])
    if first or speakers != ["Environment", "Agent"] * (len(said) // 2) + ["Environment"]:
        return None
    return Transcript(said[::2], said[1::2], _ENDINGS[whole["said"]], float(whole["reward"]))


def _line(text: str) -> str:
    return " ".join(text.split())
