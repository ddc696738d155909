"""Values of given states, with the parameters and the value head that an earlier stage left."""

from collections.abc import Sequence
from pathlib import Path

import torch
from peft.helpers import disable_input_dtype_casting

from schemas.config import ModelSection
from tasks.datasets.example import Example
from tasks.training.batches import micro_batches
from tasks.training.loss import label_states
from tasks.training.trainable import make_trainable
from tasks.training.trainer import encode_all
from tasks.training.value_head import prompt_values, with_value_head


@torch.no_grad()
def predict_values(
    model: ModelSection, start: Path | None, head: Path | None, examples: Sequence[Example], size: int
) -> tuple[dict[str, float], dict[str, str]]:
    """V(s) of each example's prompt.

    Args:
        model: the model.
        start: adapter or checkpoint; None: the model itself.
        head: file of the value head; None: a new one, whose values are 0.
        examples: their labels play no part.
        size: prompts computed together.

    Returns:
        values by row, and why the other rows have none.

    Raises:
        TrainingError: model, adapter or head can't be used.
    """
    rows, too_long = encode_all(examples, model)
    trainable = with_value_head(make_trainable(model, start, seed=0), head)
    assert trainable.value_head is not None
    found: dict[str, float] = {}
    with disable_input_dtype_casting(trainable.model):
        for some in micro_batches(rows, size):
            states = label_states(trainable.model, some, trainable.dtype)
            values = prompt_values(trainable.value_head, states, some)
            found |= {row.row_id: value for row, value in zip(some, values.tolist(), strict=True)}
    return found, too_long
