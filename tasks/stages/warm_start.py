"""Stage warm-start: before iteration 0, fine-tune the model on demonstrations of its roles.

A small model can't play six roles from their prompts alone. The result takes the base model's place: every role
of iteration 0 starts from it. With separate parameters the evaluator and the refiner keep it. Algorithm react
evaluates it.
"""

from schemas.config import Config
from schemas.load import find_file
from schemas.rows import Demonstration, TrainingRow, TrainingStep
from tasks.datasets.demonstrations import NEEDS, demonstration_examples, load_demonstrations
from tasks.runtime.algorithm import Algorithm
from tasks.runtime.context import StageContext
from tasks.runtime.lineage import Resolver
from tasks.runtime.stage import Bound, Inputs, Output, Stage, StageFailed
from tasks.training.fine_tuning import Source, fine_tune


def refuse_unfit(config: Config, iteration: int) -> None:
    """Whether this iteration has a warm start.

    Raises:
        StageFailed: it has none.
    """
    if config.warm_start.file is None:
        raise StageFailed(
            "warm-start needs demonstrations: name a Parquet file in warm_start.file of the configuration; for "
            "GuessTheNumber `nlac demonstrate FILE` writes one"
        )
    if iteration:
        raise StageFailed(f"warm-start belongs to iteration 0, not {iteration}; run it with -p iteration=0")


async def warm_start(ctx: StageContext) -> Output:
    """Fine-tune every demonstrated role at once, all rows alike.

    Raises:
        StageFailed: no demonstration can be trained on.
    """
    path = find_file(str(ctx.config.warm_start.file))
    rows = load_demonstrations(ctx, path)
    examples = demonstration_examples(ctx, rows)
    if not examples:
        reason = next((row.error for row in rows), "it holds no row")
        raise StageFailed(f"{path}: no demonstration can be trained on; the first: {reason}")
    trained = await fine_tune(
        ctx, section="warm_start", main=Source("demonstrations", examples), moves_target=False
    )
    return Output(
        tables={"demonstrations": rows, "training_rows": trained.rows, "training_steps": trained.steps},
        rows_in=len(rows),
        adapters={"warm_start": "adapter"},
        metrics=trained.metrics,
    )


def _inputs(resolve: Resolver) -> Inputs:
    return Inputs(adapters={"start": None, "target": None})


def _bound(config: Config, algorithm: Algorithm) -> Bound:
    return Bound(0, 0, "the rows of warm_start.file")


STAGE = Stage(
    name="warm-start",
    version=4,
    pool="training",
    reads=(),
    writes=(Demonstration, TrainingRow, TrainingStep),
    adapters=("warm_start",),
    config=(
        "environment",
        "warm_start",
        "anchor",
        "roles.policy.tool_calls",
        *(f"roles.{role}.{name}" for role in NEEDS for name in ("max_tokens", "structured", "line_chars")),
    ),
    roles=(),
    templates=("policy", "predict", "bootstrap", "evaluate", "refine"),
    inputs=_inputs,
    bound=_bound,
    run=warm_start,
)
