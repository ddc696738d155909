"""Asks a value head among a stage's inputs for values. Imports no torch before it is asked."""

import asyncio
import json
from collections.abc import Sequence

from tasks.datasets.example import Example
from tasks.lean_imports import lean_transformers
from tasks.runtime.context import StageContext
from tasks.runtime.stage import StageFailed
from tasks.training.records import TrainingError


async def values_of(
    ctx: StageContext, examples: Sequence[Example], *, adapter: str, head: str, rows: int
) -> tuple[dict[str, float], dict[str, str]]:
    """The value of each example's prompt; prompts that are alike are computed once.

    Args:
        ctx: the stage's context.
        examples: their labels play no part.
        adapter: use of the parameters among the stage's inputs.
        head: use of the value head among its files; where there is none yet, all values are 0.
        rows: prompts computed together.

    Returns:
        values by row, and why the other rows have none.

    Raises:
        StageFailed: model, adapter or head can't be used.
    """
    start, made = ctx.inputs.adapters[adapter], ctx.inputs.files.get(head)
    firsts: dict[str, str] = {}
    alike = {e.row_id: firsts.setdefault(json.dumps(e.messages), e.row_id) for e in examples}
    distinct = [example for example in examples if alike[example.row_id] == example.row_id]

    def predict() -> tuple[dict[str, float], dict[str, str]]:
        with lean_transformers():
            from tasks.training.state_values import predict_values

        path = made.path / f"{head}.pt" if made else None
        return predict_values(ctx.config.model, start.path if start else None, path, distinct, rows)

    try:
        values, too_long = await asyncio.to_thread(predict)
    except TrainingError as error:
        raise StageFailed(str(error)) from error
    found = {row_id: values[first] for row_id, first in alike.items() if first in values}
    return found, {row_id: too_long[first] for row_id, first in alike.items() if first in too_long}
