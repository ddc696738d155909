"""Where the rows of a packed sequence stand.

The tokens that all prompts begin with (instructions, rules of the game) stand there once, before each row's own:

    shared tokens | own tokens of one row | own tokens of the next | ...

Attention pads rows of similar length to one length; all other layers see one sequence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch

# Rows that attention pads together differ by fewer own tokens than this.
SIMILAR = 32


@dataclass(frozen=True)
class LengthGroup:
    """Rows of similar length, which follow one another in a packed sequence."""

    lengths: tuple[int, ...]  # own tokens of each row
    # None where all rows are equally long. Else, for each place of the padded [R, longest], a token of the group (any
    # token for padding, which no query sees), and for each token its place.
    tokens: torch.Tensor | None = None
    places: torch.Tensor | None = None

    def pad(self, x: torch.Tensor) -> torch.Tensor:
        """From [own tokens of all rows, H, D] to [R, H, longest, D]."""
        if self.tokens is not None:
            x = x.index_select(0, self.tokens)
        return x.view(len(self.lengths), -1, *x.shape[1:]).transpose(1, 2)

    def unpad(self, x: torch.Tensor) -> torch.Tensor:
        """From [R, longest, H, D] to [own tokens of all rows, H, D]."""
        x = x.flatten(0, 1)
        return x if self.places is None else x.index_select(0, self.places)


@dataclass(frozen=True)
class Packing:
    """A packed sequence: the number of shared tokens, and its groups in order."""

    shared: int
    groups: tuple[LengthGroup, ...]

    @property
    def sizes(self) -> list[int]:
        """Own tokens of each group."""
        return [sum(group.lengths) for group in self.groups]


def group_by_length(lengths: Sequence[int], device: torch.device) -> tuple[LengthGroup, ...]:
    """Groups of rows of these ascending lengths."""

    def group(lengths: Sequence[int]) -> LengthGroup:
        longest = max(lengths)
        if min(lengths) == longest:
            return LengthGroup(tuple(lengths))
        there = torch.arange(longest) < torch.tensor(lengths)[:, None]
        places = there.flatten().nonzero().flatten()
        tokens = torch.zeros(there.numel(), dtype=torch.long)
        tokens = tokens.index_copy_(0, places, torch.arange(len(places)))
        return LengthGroup(tuple(lengths), tokens.to(device), places.to(device))

    similar = groupby(lengths, key=lambda length: (length - 1) // SIMILAR)
    return tuple(group(list(some)) for _, some in similar)
