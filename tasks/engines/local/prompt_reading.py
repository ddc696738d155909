"""Prompts are read into slots of a KV cache. What an earlier text shares with one is copied from the prefix cache."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tasks.engines.local.kv_cache import KVCache
from tasks.engines.local.padding import chunks, pad_right
from tasks.engines.local.prefix_cache import Entry, PrefixCache, Text, shared

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, eq=False)
class Newcomer:
    """A prompt to read.

    Attributes:
        text: the prompt.
        entry: of the prefix cache, with the longest shared prefix.
        known: tokens in that prefix.
    """

    text: Text
    entry: Entry | None
    known: int

    @property
    def unread(self) -> Sequence[int]:
        """Tokens to read. The last token of the prompt is left for the step that follows."""
        return self.text.tokens[self.known : -1]


class PromptReader:
    """Reads prompts of one adapter.

    Args:
        model: the model under that adapter; must satisfy `tasks.engines.local.kv_cache.fits`.
        prefix_cache: of this and earlier batches.
        cache: whose slots are filled.
        pad_id: pads prompts that are read together.
    """

    def __init__(
        self, model: PreTrainedModel, prefix_cache: PrefixCache, cache: KVCache, pad_id: int
    ) -> None:
        self._model, self._prefix_cache, self._cache, self._pad_id = model, prefix_cache, cache, pad_id

    def read(self, prompts: Sequence[Text], first: int) -> Iterator[tuple[list[int], Entry]]:
        """Read all of each prompt but its last token, a few prompts at a time. Equal prompts share a slot.

        Args:
            prompts: with at least one token each.
            first: the slot of the prompt that is read first; the others follow it.

        Yields:
            numbers of equal prompts, and their entry in the prefix cache, in the order of the slots.
        """
        alike = defaultdict[tuple[int, ...], list[int]](list)
        for number, prompt in enumerate(prompts):
            alike[tuple(prompt.tokens)].append(number)
        waiting = [prompts[numbers[0]] for numbers in alike.values()]
        while waiting:
            now, waiting = self._apart(waiting)
            now.sort(key=lambda newcomer: len(newcomer.unread))
            for chunk in chunks([len(newcomer.unread) for newcomer in now]):
                together = [now[index] for index in chunk]
                self._read(together, first)
                for slot, newcomer in enumerate(together, first):
                    text = Text(newcomer.text.owner, newcomer.text.tokens[:-1])
                    yield alike[tuple(newcomer.text.tokens)], self._prefix_cache.add(text, slot)
                first += len(together)

    def _apart(self, waiting: Sequence[Text]) -> tuple[list[Newcomer], list[Text]]:
        """Split prompts into those to read now, and those that wait because they share a longer prefix with one of
        these than with the prefix cache."""
        now: list[Newcomer] = []
        later: list[Text] = []
        soon: set[int] = set()
        for text in waiting:
            if shared(text, soon) > shared(text, self._prefix_cache):
                later.append(text)
            else:
                now.append(Newcomer(text, *self._prefix_cache.find(text)))
                soon.update(text.blocks)
        return now, later

    def _read(self, newcomers: Sequence[Newcomer], first: int) -> None:
        """Read prompts together: copy the known prefixes, compute the rest."""
        slots = range(first, first + len(newcomers))
        for slot, newcomer in zip(slots, newcomers, strict=True):
            if newcomer.entry is not None and newcomer.known:
                entry = newcomer.entry
                held = entry.held if entry.slot is None else self._cache.held(entry.slot, newcomer.known)
                self._cache.place(slot, held, newcomer.known)
        unread = [newcomer.unread for newcomer in newcomers]
        if any(unread):
            known = [newcomer.known for newcomer in newcomers]
            self._cache.prefill(self._model, slots, known, pad_right(unread, self._pad_id))
