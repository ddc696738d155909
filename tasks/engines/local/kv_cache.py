"""A KV cache with one slot per row, so that rows join and leave a batch while others are being decoded.

Transformers' dynamic cache pads all rows to one length and copies all of them at every token. Here each row has its own
slot and starts at position 0 of it. Tokens are written in place, and a new row overwrites what the previous row left
in the slot. A token's own position alone decides which positions it attends to.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from transformers import Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

STEP = 128  # slots grow by multiples of this many positions

Held = list[tuple[torch.Tensor, torch.Tensor]]
"""A row's keys and values, one pair per layer, each [heads, tokens, head dim]."""


def fits(model: PreTrainedModel) -> bool:
    """Whether this cache fits a model: each layer attends to all earlier positions, and takes positions as input."""
    layers = DynamicCache(config=model.config).layers
    known = inspect.signature(model.forward).parameters
    return all(type(layer) is DynamicLayer for layer in layers) and "position_ids" in known


@dataclass(eq=False)
class Places:
    """Where the next tokens are written. A cache shares it with its layers: a reference from the layers to the cache
    would form a cycle, and keep the memory until the next garbage collection.

    Attributes:
        rows: slots of the rows, [rows].
        positions: of the tokens in their slots, [rows, tokens].
        slots, capacity: number of slots, and of positions in each, that the layers must have.
        width: positions that attention reads.
        leading: whether the rows are in the first slots, in order.
    """

    rows: torch.Tensor
    positions: torch.Tensor
    slots: int = 0
    capacity: int = 0
    width: int = 0
    leading: bool = True

    def reserve(self, slot: int, tokens: int, most: int) -> None:
        """Plan room for tokens in a slot, with at most `most` slots. Layers allocate it at their next write."""
        if slot >= self.slots:
            self.slots = min(most, max(slot + 1, 2 * self.slots))
        self.capacity = max(self.capacity, -(-tokens // STEP) * STEP)


class KVCacheLayer(CacheLayerMixin):
    """One layer's keys and values, [slots, heads, positions, head dim]."""

    def __init__(self, places: Places) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._places = places

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate the slots, or more and longer ones. Unwritten positions are 0: even a masked NaN would spread."""

        def longer(old: torch.Tensor | None, states: torch.Tensor) -> torch.Tensor:
            _, heads, _, width = states.shape
            new = states.new_zeros(self._places.slots, heads, self._places.capacity, width)
            if old is not None:
                new[: old.shape[0], :, : old.shape[2]] = old
            return new

        self.keys, self.values = longer(self.keys, key_states), longer(self.values, value_states)
        self.is_initialized = True

    def reserve(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate what is planned, for states of these heads and dimensions."""
        room = self.keys.shape if self.keys is not None else (0, 0, 0)
        if room[0] < self._places.slots or room[2] < self._places.capacity:
            self.lazy_initialization(key_states, value_states)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write states [rows, heads, tokens, head dim] into the rows' slots; returns all states of those rows."""
        places = self._places
        self.reserve(key_states, value_states)
        assert self.keys is not None and self.values is not None
        place = (places.rows[:, None], slice(None), places.positions)
        self.keys[place] = key_states.transpose(1, 2)
        self.values[place] = value_states.transpose(1, 2)
        which = slice(len(places.rows)) if places.leading else places.rows
        return self.keys[which, :, : places.width], self.values[which, :, : places.width]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Required by transformers; without effect, because the mask is passed whole."""
        return self._places.width, 0

    def get_seq_length(self) -> int:
        """Required by transformers; without effect, because positions are passed."""
        return self._places.width

    def get_max_length(self) -> int:
        """No limit apart from the model's."""
        return -1


class KVCache(Cache):
    """The cache of one model.

    Args:
        model: must satisfy `fits`.
        most: rows at once; slots are allocated as they are needed.
    """

    def __init__(self, model: PreTrainedModel, most: int) -> None:
        self._most, self._device = most, model.device
        nowhere = torch.zeros(0, dtype=torch.long, device=self._device)
        self.places = Places(nowhere, nowhere)
        layers = model.config.get_text_config(decoder=True).num_hidden_layers
        super().__init__(layers=[KVCacheLayer(self.places) for _ in range(layers)])

    def prefill(
        self, model: PreTrainedModel, slots: Sequence[int], starts: Sequence[int], tokens: torch.Tensor
    ) -> None:
        """Compute keys and values of tokens that follow what the slots hold.

        Args:
            slots: of the rows; the first slots, in order, are read without a copy.
            starts: tokens that each slot holds.
            tokens: ids [rows, tokens], padded on the right. Later tokens overwrite the padding.
        """
        self._forward(model, slots, starts, tokens, kept=0)

    def decode(self, model: PreTrainedModel, starts: Sequence[int], last: torch.Tensor) -> torch.Tensor:
        """Logits [rows, vocabulary] of the next token of each row; the rows are in the first slots.

        Args:
            starts: tokens that each slot holds.
            last: ids of the rows' last tokens, [rows, 1].
        """
        return self._forward(model, range(len(starts)), starts, last, kept=1)[:, 0]

    def follow(
        self, model: PreTrainedModel, slots: Sequence[int], starts: Sequence[int], tokens: torch.Tensor
    ) -> torch.Tensor:
        """Logits [rows, tokens, vocabulary] after each of the tokens. Arguments are those of `prefill`."""
        return self._forward(model, slots, starts, tokens, kept=tokens.shape[1])

    def _forward(
        self,
        model: PreTrainedModel,
        slots: Sequence[int],
        starts: Sequence[int],
        tokens: torch.Tensor,
        kept: int,
    ) -> torch.Tensor:
        places = self.places
        places.leading = list(slots) == list(range(len(slots)))
        places.rows = torch.tensor(slots, device=self._device)
        first = torch.tensor(starts, device=self._device)
        places.positions = first[:, None] + torch.arange(tokens.shape[1], device=self._device)
        places.width = max(starts) + tokens.shape[1]
        places.reserve(max(slots), places.width, self._most)
        seen = torch.arange(places.width, device=self._device) <= places.positions[:, None, :, None]
        logits: torch.Tensor = model(
            input_ids=tokens.to(self._device),
            attention_mask=seen,
            position_ids=places.positions,
            past_key_values=self,
            use_cache=True,
            # As indices, because the number 0 would keep all.
            logits_to_keep=torch.arange(tokens.shape[1] - kept, tokens.shape[1], device=self._device),
        ).logits
        return logits

    def held(self, slot: int, tokens: int) -> Held:
        """Views of the first tokens of a slot."""
        return [(keys[slot, :, :tokens], values[slot, :, :tokens]) for keys, values in self._states()]

    def place(self, slot: int, held: Held, tokens: int) -> None:
        """Copy the first tokens of held states into a slot."""
        self.places.reserve(slot, tokens, self._most)
        for layer, (keys, values) in zip(cast("list[KVCacheLayer]", self.layers), held, strict=True):
            layer.reserve(keys[None], values[None])
        for (own_keys, own_values), (keys, values) in zip(self._states(), held, strict=True):
            own_keys[slot, :, :tokens] = keys[:, :tokens]
            own_values[slot, :, :tokens] = values[:, :tokens]

    def _states(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values of each layer."""
        return [(layer.keys, layer.values) for layer in cast("list[Any]", self.layers)]
