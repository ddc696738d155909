"""Language discounting, measured: where a backed-up description has its words from.

The bootstrap prompt asks for what happens next (s', r) first and foremost and for the rest of d' in less detail, so
that what is far off fades. By words alone, as the leak check sees them: a paraphrase counts as in neither.
"""

from dataclasses import dataclass

from tasks.text.clauses import content_of, plain, words_of


@dataclass(frozen=True)
class Discounting:
    """Shares of a description's distinct content words; what is left is in neither text.

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
    """Where a description of a transition that is not terminal has its content words from.

    Args:
        description: d, as backed up from the others.
        next_observation: what s' newly shows.
        reward: r; counts as words, the way the bootstrap prompt shows it.
        future: d'.

    Returns:
        None for a description without a content word.
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
