"""The KL anchor: a loss for moving away from the base model (paper, appendix B.6).

At a label token, given all tokens before it, KL(p_theta || p_base) = sum_v p_theta(v) (log p_theta(v) - log p_base(v))
over the whole vocabulary. The base is the model that `model.name` names. Under LoRA that is the model without its
adapter, so no second copy of the weights is needed. Where all weights train it is a frozen copy, in float32 like those,
so that the anchor is exactly 0 before the first step.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from schemas.config import ModelSection
from tasks.training.data import Encoded
from tasks.training.loss import autocast, label_states, targets
from tasks.training.model import load_trainable
from tasks.training.trainable import Trainable
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
    coefficient: float, rows: frozenset[str], trainable: Trainable, section: ModelSection
) -> Anchor | None:
    """The anchor of a model in training to the base that `section` names; None where the coefficient is 0."""
    if not coefficient:
        return None
    without_adapter = trainable.without_adapter
    if without_adapter is None:
        frozen = load_trainable(section, None).requires_grad_(False)
        return Anchor(coefficient, rows, lambda: nullcontext(frozen))

    @contextmanager
    def bare() -> Iterator[PreTrainedModel]:
        with without_adapter():
            yield trainable.model

    return Anchor(coefficient, rows, bare)


def anchored_losses(
    model: PreTrainedModel, rows: Sequence[Encoded], base: Base, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of every label token, as `loss.token_losses`, and KL(p_theta || p_base) there, in one forward pass.

    Returns:
        two float32 [label tokens of all rows]; no gradient goes to the base.
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
    return losses, divergences
