"""The shape of a decoder: how many numbers its weights, activations and cache hold. Imports no torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache

from schemas.config import ModelSection
from tasks.engines.models import MissingModel, ModelError, check_model, resolve_model


@dataclass(frozen=True)
class Architecture:
    """A decoder of gated MLPs and grouped attention (Llama, Qwen, Mistral, Gemma ...).

    Attributes:
        layers: decoder layers.
        hidden: size of a hidden state.
        inner: size inside a gated MLP.
        heads: of a query.
        kv_heads: of keys and values.
        head_size: of one head.
        vocabulary: tokens.
        tied: whether embeddings and head are one matrix.
    """

    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    tied: bool

    @property
    def products(self) -> list[tuple[int, int]]:
        """(inputs, outputs) of a layer's matrices: query, key, value, output, gate, up, down."""
        query, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        attention = [(self.hidden, query), (self.hidden, keys), (self.hidden, keys), (query, self.hidden)]
        return [*attention, (self.hidden, self.inner), (self.hidden, self.inner), (self.inner, self.hidden)]

    @property
    def layer(self) -> int:
        """Parameters of a layer; biases left out."""
        return sum(inputs * outputs for inputs, outputs in self.products) + 2 * self.hidden

    @property
    def ends(self) -> int:
        """Parameters of embeddings, head and last norm."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2) + self.hidden

    @property
    def parameters(self) -> int:
        """All of them."""
        return self.layers * self.layer + self.ends

    def adapter(self, rank: int) -> int:
        """Parameters of a LoRA adapter on all linear layers."""
        return self.layers * sum(rank * (inputs + outputs) for inputs, outputs in self.products)

    @property
    def cached(self) -> int:
        """Numbers that the cache holds of a token: its keys and values in each layer."""
        return 2 * self.layers * self.kv_heads * self.head_size


# From each model's config.json, for machines that do not hold the model.
KNOWN = {
    "Qwen/Qwen2.5-7B-Instruct": Architecture(28, 3584, 18944, 28, 4, 128, 152064, tied=False),
    "Qwen/QwQ-32B": Architecture(64, 5120, 27648, 40, 8, 128, 152064, tied=False),
}


def architecture_of(model: ModelSection) -> Architecture:
    """The shape of a configured model, from its config.json where that is on this machine.

    Raises:
        MissingModel: it is not, and the shape is not known either.
        ModelError: its config.json does not say it.
    """
    file = _config_file(model)
    if file is not None:
        try:
            return read_architecture(json.loads(file.read_text()))
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise ModelError(
                f"model.name: {file} does not say the shape of a decoder ({type(error).__name__}: {error}); its memory "
                "can't be estimated: leave --gpu out, or give another model"
            ) from error
    if model.name not in KNOWN:
        raise MissingModel(
            f"model.name: the shape of {model.name} is not known on this machine, so its memory can't be estimated; "
            f"download its config.json (hf download {model.name} config.json), or give the model's folder"
        )
    return KNOWN[model.name]


def _config_file(model: ModelSection) -> Path | None:
    try:
        check_model(model)
        place = resolve_model(model)
    except MissingModel:
        return None
    if isinstance(place, Path):
        return place / "config.json"
    cached = try_to_load_from_cache(place, "config.json", revision=model.revision)
    return Path(cached) if isinstance(cached, str) else None


def read_architecture(config: dict[str, Any]) -> Architecture:
    """The shape that a config.json states, under transformers' names; of a model that sees too, its decoder's."""
    config = config.get("text_config", config)
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    return Architecture(
        layers=config["num_hidden_layers"],
        hidden=hidden,
        inner=config["intermediate_size"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_size=config.get("head_dim") or hidden // heads,
        vocabulary=config["vocab_size"],
        tied=config.get("tie_word_embeddings", True),
    )
