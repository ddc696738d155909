"""Rows of a micro-batch one behind the other in one sequence: no padding, and no row sees another.

What all prompts begin with alike (instructions, rules of the game) stands there once, before what is each row's own:

    beginning | own tokens of one row | own tokens of the next | ...

All layers but attention see such a sequence as any other. Attention lays rows of like length side by side.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, groupby
from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from tasks.training.cpu.attention import CausalAttention, seen_positions

ATTENTION = "nlac_packed_attention"
# A shorter common beginning is not worth an attention of its own.
SHORTEST_SHARED = 32
# Own tokens by which rows that attention lays side by side differ at most.
LIKE = 32
# A packed sequence is filled up to a multiple: for each length that oneDNN's products see for the first time they keep
# 0.4 MB a layer's shape.
MULTIPLE = 16


@dataclass(frozen=True)
class Group:
    """Rows of like length, which stand one behind the other in a packed sequence.

    Attributes:
        lengths: own tokens of each.
        tokens: for each place of [R, longest] one of the group's tokens, any where there is none: nothing looks there.
            None, as `places`, where all rows are equally long.
        places: of each of the group's tokens.
    """

    lengths: tuple[int, ...]
    tokens: torch.Tensor | None = None
    places: torch.Tensor | None = None

    def side_by_side(self, x: torch.Tensor) -> torch.Tensor:
        """[own tokens of all rows, H, D] as [R, H, longest, D]."""
        if self.tokens is not None:
            x = x.index_select(0, self.tokens)
        return x.view(len(self.lengths), -1, *x.shape[1:]).transpose(1, 2)

    def one_behind_the_other(self, x: torch.Tensor) -> torch.Tensor:
        """[R, longest, H, D] as [own tokens of all rows, H, D]."""
        x = x.flatten(0, 1)
        return x if self.places is None else x.index_select(0, self.places)


@dataclass(frozen=True)
class Packing:
    """Where tokens stand in a packed sequence.

    Attributes:
        shared: tokens that all rows begin with.
        groups: in the order in which they stand there.
    """

    shared: int
    groups: tuple[Group, ...]

    @property
    def sizes(self) -> list[int]:
        """Own tokens of each group."""
        return [sum(group.lengths) for group in self.groups]


def like_lengths(lengths: Sequence[int], device: torch.device) -> tuple[Group, ...]:
    """Groups of rows of these lengths, which ascend."""

    def group(lengths: Sequence[int]) -> Group:
        longest = max(lengths)
        if min(lengths) == longest:
            return Group(tuple(lengths))
        there = torch.arange(longest) < torch.tensor(lengths)[:, None]
        places = there.flatten().nonzero().flatten()
        tokens = torch.zeros(there.numel(), dtype=torch.long).index_copy_(
            0, places, torch.arange(len(places))
        )
        return Group(tuple(lengths), tokens.to(device), places.to(device))

    return tuple(group(list(same)) for _, same in groupby(lengths, key=lambda length: (length - 1) // LIKE))


def hidden_states(
    model: PreTrainedModel, rows: Sequence[Sequence[int]], shared: int
) -> tuple[torch.Tensor, list[int]]:
    """Last hidden states of rows, one behind the other.

    Args:
        model: a model that reads packed rows; others compute them one by one.
        rows: token ids of each.
        shared: tokens that all begin with; each row has others after them.

    Returns:
        [N, H], and for each row where the states of its own tokens begin.
    """
    decoder, device = model.get_decoder(), model.device
    if not packs(model):
        states = [decoder(input_ids=torch.tensor([row], device=device), use_cache=False) for row in rows]
        begins = accumulate((len(row) for row in rows), initial=shared)
        return torch.cat([state.last_hidden_state[0] for state in states]), list(begins)[:-1]
    order = sorted(range(len(rows)), key=lambda number: len(rows[number]))
    lengths = [len(rows[number]) - shared for number in order]
    fill = -(shared + sum(lengths)) % MULTIPLE
    lengths[-1] += fill  # behind the last row, where no row looks
    packing = Packing(shared, like_lengths(lengths, device))
    ids, positions = [*rows[0][:shared]], [*range(shared)]
    begins = [0] * len(rows)
    for number in order:
        begins[number] = len(ids)
        ids += rows[number][shared:]
        positions += range(shared, len(rows[number]))
    tokens = len(ids)
    ids += ids[-1:] * fill
    positions += positions[-1:] * fill
    hidden: torch.Tensor = decoder(
        input_ids=torch.tensor([ids], device=device),
        position_ids=torch.tensor([positions], device=device),
        use_cache=False,
        packing=packing,
    ).last_hidden_state
    return hidden[0, :tokens], begins


def packs(model: PreTrainedModel) -> bool:
    """Whether a model reads packed rows."""
    return bool(model.config._attn_implementation == ATTENTION)


@torch.no_grad()
def use_packing(model: PreTrainedModel) -> None:
    """Have a model read packed rows, if it then computes what it did before.

    Families differ in what they hand to their attention, and in what else looks back (convolutions, recurrent layers),
    so the model is asked: by how much a row behind another differs from the row alone, against the difference that
    another beginning makes to it. Roundings apart there is none.
    """
    if set(getattr(model.config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}:
        return
    first, second, other = [0, 1, 2, 3, 4], [0, 1, 2, 5, 4], [5, 4, 3, 5, 4]
    alone, elsewhere = (hidden_states(model, [row], 0)[0][3:] for row in (second, other))
    usual = model.config._attn_implementation
    model.set_attn_implementation(ATTENTION)
    try:
        states, (_, begin) = hidden_states(model, [first, second], 3)
        packed = states[begin : begin + len(alone)]
    except (RuntimeError, TypeError, ValueError):  # of a shape or an argument that it does not know
        packed = elsewhere
    rounding = torch.finfo(alone.dtype).eps ** 0.5
    if not torch.dist(packed, alone) < rounding * torch.dist(elsewhere, alone):
        model.set_attn_implementation(usual)


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    packing: Packing | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention with the signature of transformers' attention functions.

    Args:
        module: the attention layer.
        query: [R, H, T, D], or [1, H, N, D] where rows are packed.
        key: [R, G, T, D], or [1, G, N, D].
        value: as key.
        attention_mask: not looked at; transformers makes none for an attention that it has no masks for.
        packing: of the rows; None: they are as they come.
        kwargs: of `attend_last`.

    Returns:
        [R, T, H, D] or [1, N, H, D], and no attention weights.
    """
    attend = partial(attend_last, module, fused=query.device.type == "cpu", **kwargs)
    if packing is None:
        return attend(query, key, value).contiguous(), None
    sides = [side[0].transpose(0, 1) for side in (query, key, value)]  # [N, heads, D]
    firsts, *groups = zip(*(side.split([packing.shared, *packing.sizes]) for side in sides), strict=True)
    first_query, first_key, first_value = (first.transpose(0, 1)[None] for first in firsts)
    out = []
    if packing.shared:
        out.append(attend(first_query, first_key, first_value)[0])
    for group, own in zip(packing.groups, groups, strict=True):
        query, key, value = map(group.side_by_side, own)
        if packing.shared:
            key = torch.cat([first_key.expand(len(key), -1, -1, -1), key], dim=2)
            value = torch.cat([first_value.expand(len(value), -1, -1, -1), value], dim=2)
        out.append(group.one_behind_the_other(attend(query, key, value)))
    return torch.cat(out)[None], None


def attend_last(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    fused: bool,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """What the last T of L positions take from all up to their own.

    Args:
        module: the attention layer; the library's own function reads it.
        query: [R, H, T, D].
        key: [R, G, L, D].
        value: as key.
        fused: by `CausalAttention`, for a CPU; else by the library's function, and so by a GPU's kernels, the fastest
            of which take no mask.
        scaling: factor on the products; None is 1/sqrt(D).
        sliding_window: how many positions a query sees, its own counted; None: all up to its own.
        kwargs: for the library's own function.

    Returns:
        [R, T, H, D].
    """
    if fused:
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        # With float32 weights autocast leaves the rotated sides in float32.
        query, key = query.to(value.dtype), key.to(value.dtype)
        out: torch.Tensor = CausalAttention.apply(query, key, value, scale, sliding_window)
        return out.transpose(1, 2)
    length, keys = query.shape[2], key.shape[2]
    mask = None
    if length < keys or (sliding_window is not None and sliding_window < keys):
        mask = seen_positions(range(keys - length, keys), keys, sliding_window, query.device)[None, None]
    return sdpa_attention_forward(module, query, key, value, mask, scaling=scaling, **kwargs)[0]


# Without masks of that name transformers makes none.
AttentionInterface.register(ATTENTION, packed_attention)
