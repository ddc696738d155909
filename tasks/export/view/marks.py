"""What is marked inside a text: leaking passages of a thought, and tokens with their log-probabilities."""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from schemas.config import Config
from tasks.engines.models import ModelError, resolve_model
from tasks.text.clauses import SHORT_FORMS

Leaky = list[tuple[str, bool]]
"""A text in pieces, and whether each one leaks."""
Shaded = list[tuple[str, float]]
"""A text in pieces of one token or more, and the log-probability (nats) of each piece."""


def mark_leaks(thought: str, passages: Iterable[str]) -> Leaky:
    """Find the passages of a leak in the thought that they were found in.

    Args:
        thought: as it was written.
        passages: those of `tasks.text.leaks.Leak`: in lower case, with contractions expanded.
    """
    found = [match.span() for passage in passages for match in _pattern(passage).finditer(thought)]
    pieces: Leaky = []
    at = 0
    for start, end in sorted(found):
        if start >= at:
            pieces += [(thought[at:start], False), (thought[start:end], True)]
            at = end
    return [piece for piece in (*pieces, (thought[at:], False)) if piece[0]]


def _pattern(passage: str) -> re.Pattern[str]:
    text = re.escape(passage)
    for short, full in SHORT_FORMS:
        forms = "|".join(re.escape(form).replace("'", "['’]") for form in (full, short))
        text = text.replace(re.escape(full), f"(?:{forms})")
    return re.compile(text, re.IGNORECASE)


def shade(tokenizer: Tokenizer, ids: Sequence[int], logprobs: Sequence[float]) -> Shaded:
    """The text of sampled tokens. Tokens that share a character make one piece, with the sum of their values.

    Args:
        tokenizer: that of the model that sampled them.
        ids: the tokens.
        logprobs: of each token, nats.
    """
    stream = DecodeStream(skip_special_tokens=False)
    pieces: Shaded = []
    waiting = 0.0
    for token, logprob in zip(ids, logprobs, strict=True):
        text, waiting = stream.step(tokenizer, token), waiting + logprob
        if text is not None:
            pieces.append((text, round(waiting, 3)))
            waiting = 0.0
    return pieces


def tokenizer_of(config: Config, engine: str) -> Tokenizer | None:
    """The tokenizer of the model behind an engine; None where the model is not on this machine.

    The library is read directly: transformers takes seconds to import.
    """
    section = config.engines.get(engine)
    if section is None:
        return None
    return (
        _tokenizer(section.model, None)
        if section.model
        else _tokenizer(config.model.name, config.model.revision)
    )


@lru_cache(maxsize=8)
def _tokenizer(model: str, revision: str | None) -> Tokenizer | None:
    try:
        place = resolve_model(model)
    except ModelError:
        return None
    if isinstance(place, str):
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(place, "tokenizer.json", revision=revision)
        file = Path(cached) if isinstance(cached, str) else None
    else:
        file = place / "tokenizer.json"
    return Tokenizer.from_file(str(file)) if file is not None and file.is_file() else None
