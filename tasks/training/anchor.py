"""The KL anchor: a loss for moving away from the model that training began from (paper, appendix B.6).

At a label token, given all tokens before it, KL(p_theta || p_base) = sum_v p_theta(v) (log p_theta(v) - log p_base(v))
over the whole vocabulary. The base is the model that `model.name` names, or the warm-started one. Under LoRA that is
the model without its adapter, or with the warm start's matrices put in place of its own for the pass, so no second copy
of the weights is needed. Where all weights train it is a frozen copy, in float32 like those, so that the anchor is
exactly 0 before the first step.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedModel

from schemas.config import ModelSection
from tasks.training.data import Encoded
from tasks.training.loss import autocast, label_states, targets
from tasks.training.model import device_of, load_trainable
from tasks.training.sharding import shard_layers
from tasks.training.trainable import Trainable, target_tensors
from tasks.training.vocabulary_losses import VocabularyLosses, in_chunks

Base = Callable[[], AbstractContextManager[PreTrainedModel]]


@dataclass(frozen=True)
class Anchor:
    """The KL of a model in training to its base."""

    coefficient: float  # of the KL in the loss
    rows: frozenset[str]  # ids of the stage's own rows, over whose label tokens the KL is averaged
    base: Base  # gives the base model while entered; nothing may train meanwhile

    def tokens(self, batch: Sequence[Encoded]) -> int:
        """Label tokens of a batch over which the KL is averaged."""
        return sum(len(row.label_ids) for row in batch if row.row_id in self.rows)


def make_anchor(
    coefficient: float,
    rows: frozenset[str],
    trainable: Trainable,
    section: ModelSection,
    to: Path | None = None,
) -> Anchor | None:
    """The anchor of a model in training; None where the coefficient is 0.

    Args:
        coefficient: of the KL.
        rows: ids of the stage's own rows.
        trainable: the model in training.
        section: names the base.
        to: adapter or checkpoint that takes the base's place, as `model.train` says; None: the base itself.

    Raises:
        TrainingError: `to` can't be read, or is of other parameters.
    """
    if not coefficient:
        return None
    changed = trainable.without_adapter
    if changed is None:
        together = trainable.processes if trainable.sharded else None
        frozen = load_trainable(section, to, together).requires_grad_(False)
        if together:
            shard_layers(frozen, device_of(section), together)
        return Anchor(coefficient, rows, lambda: nullcontext(frozen))
    if to is not None:
        changed = partial(_holding, trainable.tensors, target_tensors(trainable, section, to))

    @contextmanager
    def base() -> Iterator[PreTrainedModel]:
        with changed():
            yield trainable.model

    return Anchor(coefficient, rows, base)


@contextmanager
def _holding(tensors: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """While entered, parameters hold other values."""
    own = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    _put(tensors, values)
    try:
        yield
    finally:
        _put(tensors, own)


@torch.no_grad()
def _put(tensors: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        tensor.copy_(values[name])


def anchored_losses(
    model: PreTrainedModel, rows: Sequence[Encoded], base: Base, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The loss of every label token, as `loss.token_losses`, and KL(p_theta || p_base) there, in one forward pass.

    Returns:
        two float32 [label tokens of all rows], and the hidden states that predict them; no gradient goes to the base.
    """
    # The base first: an adapter must not be switched off while a graph that holds it is being built.
    with torch.no_grad(), base() as frozen:
        base_states = label_states(frozen, rows, dtype)
        base_head = frozen.get_output_embeddings()
        base_head = getattr(base_head, "base_layer", base_head)  # an adapter may be on the head too
    head = model.get_output_embeddings()

    def both(
        states: torch.Tensor, base_states: torch.Tensor, ids: torch.Tensor, shares: torch.Tensor
    ) -> torch.Tensor:
        with torch.no_grad():
            base_logits = base_head(base_states)
        losses: torch.Tensor = VocabularyLosses.apply(head(states), ids, shares, base_logits)  # type: ignore[no-untyped-call]
        return losses

    ids, shares = (tensor.to(model.device) for tensor in targets(rows))
    states = label_states(model, rows, dtype)
    with autocast(model, dtype):
        losses, divergences = in_chunks(both, 2 * head.weight.shape[0], (states, base_states, ids, shares))
    return losses, divergences, states
