"""A key-value cache of slots: rows of a batch come and go while the others are being written.

Transformers' dynamic cache pads all rows to one length and copies all of them at every token. Here a row lies in a
slot of its own, its first token at position 0, so that it is written in place, what it leaves behind is overwritten by
the next, and no row waits for another. Which positions a token sees follows from its own position alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer

STEP = 128  # slots grow by multiples of this many positions

Held = list[tuple[torch.Tensor, torch.Tensor]]
"""A row's keys and values, a pair a layer, each [heads, tokens, head dim]."""


def fits(model: torch.nn.Module) -> bool:
    """Whether a model's rows can lie in slots: every layer attends to all that came before, by given positions."""
    layers = DynamicCache(config=model.config).layers
    known = inspect.signature(model.forward).parameters
    return all(type(layer) is DynamicLayer for layer in layers) and "position_ids" in known


@dataclass(eq=False)
class Places:
    """Where the next tokens are written; a cache and its layers share it. (Layers that held their cache would keep it,
    and its memory, until Python looks for cycles.)

    Attributes:
        rows: slots, [rows].
        positions: of the tokens in them, [rows, tokens].
        slots, capacity: how many slots there are to be, and how many positions in each.
        width: positions that are seen.
        leading: whether the rows are the first slots.
    """

    rows: torch.Tensor
    positions: torch.Tensor
    slots: int = 0
    capacity: int = 0
    width: int = 0
    leading: bool = True

    def reserve(self, slot: int, tokens: int, most: int) -> None:
        """Room for tokens in a slot, of at most so many slots; layers make it when they are next written to."""
        if slot >= self.slots:
            self.slots = min(most, max(slot + 1, 2 * self.slots))
        self.capacity = max(self.capacity, -(-tokens // STEP) * STEP)


class KVCacheLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's keys and values, [slots, heads, positions, head dim]."""

    def __init__(self, places: Places) -> None:
        super().__init__()
        self._places = places

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Make the slots, or more and longer ones. What is not written yet is 0: a masked NaN would spread."""

        def longer(old: torch.Tensor | None, states: torch.Tensor) -> torch.Tensor:
            _, heads, _, width = states.shape
            new = states.new_zeros(self._places.slots, heads, self._places.capacity, width)
            if old is not None:
                new[: old.shape[0], :, : old.shape[2]] = old
            return new

        self.keys, self.values = longer(self.keys, key_states), longer(self.values, value_states)
        self.is_initialized = True

    def reserve(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Room for what is about to be written, of these heads and widths."""
        room = self.keys.shape if self.is_initialized else (0, 0, 0)
        if room[0] < self._places.slots or room[2] < self._places.capacity:
            self.lazy_initialization(key_states, value_states)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write tokens [rows, heads, tokens, head dim] to their rows' slots; give back all that those rows hold."""
        places = self._places
        self.reserve(key_states, value_states)
        place = (places.rows[:, None], slice(None), places.positions)
        self.keys[place] = key_states.transpose(1, 2)
        self.values[place] = value_states.transpose(1, 2)
        which = slice(len(places.rows)) if places.leading else places.rows
        return self.keys[which, :, : places.width], self.values[which, :, : places.width]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """As transformers asks; masks are given whole, so it is of no consequence."""
        return self._places.width, 0

    def get_seq_length(self) -> int:
        """As transformers asks; positions are given."""
        return self._places.width

    def get_max_length(self) -> int:
        """No bound but the model's."""
        return -1


class KVCache(Cache):  # type: ignore[misc]
    """See the module.

    Args:
        model: `fits` is true of it.
        most: rows at once; slots are made as they are needed.
    """

    def __init__(self, model: torch.nn.Module, most: int) -> None:
        self._most, self._device = most, model.device
        nowhere = torch.zeros(0, dtype=torch.long, device=self._device)
        self.places = Places(nowhere, nowhere)
        layers = model.config.get_text_config(decoder=True).num_hidden_layers
        super().__init__(layers=[KVCacheLayer(self.places) for _ in range(layers)])

    def read(
        self, model: torch.nn.Module, slots: Sequence[int], starts: Sequence[int], tokens: torch.Tensor
    ) -> None:
        """Have the model read tokens behind what some slots hold.

        Args:
            model: the model.
            slots: of the rows; those from 0 on are read without copying.
            starts: how much each slot holds.
            tokens: ids [rows, tokens]. Padding stands on the right and is overwritten by what comes next.
        """
        self._forward(model, slots, starts, tokens, kept=0)

    def write(self, model: torch.nn.Module, starts: Sequence[int], last: torch.Tensor) -> torch.Tensor:
        """Have the model read the last token of each row, in the first slots, to write the next.

        Args:
            model: the model.
            starts: how much each slot holds.
            last: ids [rows, 1].

        Returns:
            The logits behind it, [rows, vocabulary].
        """
        return self._forward(model, range(len(starts)), starts, last, kept=1)[:, 0]

    def _forward(
        self,
        model: torch.nn.Module,
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
            # As positions: 0 of the last would mean all of them.
            logits_to_keep=torch.arange(tokens.shape[1] - kept, tokens.shape[1], device=self._device),
        ).logits
        return logits

    def held(self, slot: int, tokens: int) -> Held:
        """Views of the first tokens of a slot."""
        return [(layer.keys[slot, :, :tokens], layer.values[slot, :, :tokens]) for layer in self.layers]

    def place(self, slot: int, held: Held, tokens: int) -> None:
        """Copy the first tokens of a row into a slot."""
        self.places.reserve(slot, tokens, self._most)
        for layer, (keys, values) in zip(self.layers, held, strict=True):
            layer.reserve(keys[None], values[None])
            layer.keys[slot, :, :tokens] = keys[:, :tokens]
            layer.values[slot, :, :tokens] = values[:, :tokens]
