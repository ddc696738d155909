"""A played future as text: what the environment and the agent said in turn, how it ended, and the reward.

Written by `tasks.improvement.monte_carlo` and read by players made of rules, so that both know one form:

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
_WHOLE = re.compile(rf"(?P<turns>.*) (?P<said>{'|'.join(_ENDINGS)}); reward (?P<reward>\S+)\.")
REPLY = r"(?:^| )Environment: "  # one a step
_SPEAKER = re.compile(r"(?:^| )(Environment|Agent): ")


@dataclass(frozen=True)
class Transcript:
    """What was played from (s, a) on.

    Attributes:
        observations: one a step; the first answers a.
        actions: the environment actions after a, one fewer.
        ending: by the task's own rules, or by a cap.
        reward: the sum over the steps.
    """

    observations: Sequence[str]
    actions: Sequence[str]
    ending: Ending
    reward: float


def write_transcript(played: Transcript) -> str:
    """The text, on one line."""
    turns = [f"Environment: {_line(played.observations[0])}"]
    for action, observation in zip(played.actions, played.observations[1:], strict=True):
        turns += [f"Agent: {_line(action)}", f"Environment: {_line(observation)}"]
    return " ".join([*turns, f"{_SAID[played.ending]}; reward {played.reward:g}."])


def read_transcript(text: str) -> Transcript | None:
    """Read such a text back; None where it is none, or a turn holds a speaker's name and a colon itself."""
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
