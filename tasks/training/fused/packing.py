"""Hidden states of a micro-batch's rows, packed into one sequence without padding where the model allows it."""

from collections.abc import Sequence
from itertools import accumulate

import torch
from transformers import PreTrainedModel

from tasks.training.fused.packed_attention import ATTENTION
from tasks.training.fused.packed_rows import Packing, group_by_length

# A shared beginning that spares fewer tokens is not worth an attention of its own.
LEAST_SPARED = 32
# A packed sequence is padded to a multiple of this: oneDNN's products store 0.4 MB per layer shape for each new length.
MULTIPLE = 16


def hidden_states(
    model: PreTrainedModel, rows: Sequence[Sequence[int]], shared: int
) -> tuple[torch.Tensor, list[int]]:
    """Last hidden states of rows, one after another.

    Args:
        model: computes the rows one by one unless it reads packed rows.
        rows: token ids of each.
        shared: number of tokens that all begin with; each row has others after them.

    Returns:
        [N, H], and for each row where the states of its own tokens begin.
    """
    decoder, device = model.get_decoder(), model.device
    if not packs(model):
        states = [decoder(input_ids=torch.tensor([row], device=device), use_cache=False) for row in rows]
        ends = accumulate((len(row) for row in rows), initial=shared)
        return torch.cat([state.last_hidden_state[0] for state in states]), list(ends)[:-1]
    order = sorted(range(len(rows)), key=lambda number: len(rows[number]))
    lengths = [len(rows[number]) - shared for number in order]
    fill = -(shared + sum(lengths)) % MULTIPLE
    lengths[-1] += fill  # after the last row's own tokens, which do not see it
    packing = Packing(shared, group_by_length(lengths, device))
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
    """Have a model read packed rows if it then computes what it did before.

    Families differ in what they pass to their attention, and in what else looks back (convolutions, recurrent layers).
    So the model is tried: the difference between a packed row and the row alone must be far below the difference that
    another beginning makes.
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
    except (RuntimeError, TypeError, ValueError):  # a shape or an argument that the model does not know
        packed = elsewhere
    rounding = torch.finfo(alone.dtype).eps ** 0.5
    if not torch.dist(packed, alone) < rounding * torch.dist(elsewhere, alone):
        model.set_attn_implementation(usual)
