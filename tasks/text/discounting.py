"""Measures language discounting: which inputs a backed-up description takes its words from.

The bootstrap prompt asks for what happens next (s', r) in most detail and for the rest of d' in less, so that the far
future fades. Only words are compared, as in the leak check; a paraphrase counts as neither.
"""

from dataclasses import dataclass

from tasks.text.clauses import content_of, plain, words_of


@dataclass(frozen=True)
class Discounting:
    """Shares of a description's distinct content words; the remainder to 1 is in neither text.

    Attributes:
        next: in s' or r, and not in d'.
        future: in d', and not in s' or r.
        both: in both.
    """

    next: float
    future: float
    both: float


def measure_discounting(
    description: str, *, next_observation: str, reward: float, future: str
) -> Discounting | None:
    """The sources of the content words in the description of a non-terminal transition.

    Args:
        description: d, backed up from the others.
        next_observation: the newest observation in s'.
        reward: r; its words are those of the bootstrap prompt.
        future: d'.

    Returns:
        None if the description has no content word.
    """
    own = _content(description)
    if not own:
        return None
    near, far = _content(f"{next_observation}\nReward: {reward:g}"), _content(future)
    return Discounting(
        next=len(own & near - far) / len(own),
        future=len(own & far - near) / len(own),
        both=len(own & near & far) / len(own),
    )


def _content(text: str) -> frozenset[str]:
    return content_of(words_of(plain(text)))
