"""What the policy is trained on: refined actions, or the actions of successful episodes."""

import random
from collections.abc import Sequence

import polars as pl

from schemas.rows import Refinement
from tasks.datasets.drawn_transitions import load_drawn
from tasks.datasets.example import Example
from tasks.datasets.sft_examples import drawn_examples, refined_examples
from tasks.runtime.algorithm import PolicyRows
from tasks.runtime.context import StageContext
from tasks.runtime.lineage import Resolver
from tasks.runtime.stage import Inputs, StageFailed
from tasks.seeding import derive_seed
from tasks.training.fine_tuning import nothing_to_train


def _read_refined(resolve: Resolver) -> Inputs:
    return Inputs(tables={"refinements": [resolve.here("refinement")], "transitions": resolve.replay()})


def _refined(ctx: StageContext) -> tuple[list[Example], dict[str, float]]:
    refinements: Sequence[Refinement] = ctx.inputs.rows("refinements")
    examples = _remake_refined(ctx, set())
    if not examples:
        raise nothing_to_train(
            "refined actions", refinements,
            "the policy stays as it is; roles.refine.structured: true has actions written in the environment's form",
        )  # fmt: skip
    return examples, {}


def _remake_refined(ctx: StageContext, ids: set[str]) -> list[Example]:
    refinements: Sequence[Refinement] = ctx.inputs.rows("refinements")
    return refined_examples(
        ctx, refinements, load_drawn(ctx.inputs, [row.transition_id for row in refinements])
    )


def _read_successful(resolve: Resolver) -> Inputs:
    played = resolve.replay(drawing=True)
    return Inputs(tables={"episodes": played, "transitions": played})


def _successful(ctx: StageContext) -> tuple[list[Example], dict[str, float]]:
    """`replay.transitions` valid actions of successful episodes, or all if there are fewer."""
    won = ctx.inputs.scan("episodes").filter(pl.col("success"), pl.col("split") == "train")
    steps = ctx.inputs.scan("transitions").filter(pl.col("action_valid"))
    found = steps.join(won.select("episode_id"), on="episode_id", how="semi").select("transition_id")
    ids = found.collect()["transition_id"].to_list()
    if not ids:
        raise StageFailed(
            "no training episode has succeeded yet, so there is nothing to fine-tune on; raise rollout.episodes or "
            "rollout.uniform_until"
        )
    stream = random.Random(derive_seed(ctx.config.seed, "rejection", ctx.iteration))
    drawn = stream.sample(ids, min(ctx.config.replay.transitions, len(ids)))
    transitions = load_drawn(ctx.inputs, drawn)
    examples = drawn_examples(ctx, (transitions[i] for i in drawn))
    return examples, {"successful_transitions": float(len(ids))}


def _remake_successful(ctx: StageContext, ids: set[str]) -> list[Example]:
    return drawn_examples(ctx, load_drawn(ctx.inputs, ids).values())


REFINED_ACTIONS = PolicyRows(
    table="refinements",
    read=_read_refined,
    load=_refined,
    remake=_remake_refined,
    count=lambda config: min(config.improvement.states, config.replay.transitions),
)
SUCCESSFUL_ACTIONS = PolicyRows(
    table="transitions",
    read=_read_successful,
    load=_successful,
    remake=_remake_successful,
    count=lambda config: config.replay.transitions,
)
