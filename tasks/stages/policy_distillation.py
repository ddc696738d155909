"""Stage policy-distillation: L2 = -log pi_theta(a_r|s) under the plain policy prompt, over the refined
actions.

With shared parameters critic rows are mixed into every batch and the target goes on following; separate
adapters, and algorithms without a critic, train the policy alone. Rejection fine-tuning (algorithm rft) is the
same stage over other rows: the actions of successful episodes, of all iterations.
"""

import random

import polars as pl

from schemas.rows import Refinement, TrainingRow, TrainingStep
from tasks.datasets.drawn_transitions import load_drawn
from tasks.datasets.sft_examples import critic_examples, drawn_examples, refined_examples
from tasks.runtime.context import StageContext
from tasks.runtime.stage import Inputs, Output, Resolver, Stage, StageFailed
from tasks.seeding import derive_seed
from tasks.training.fine_tuning import Source, fine_tune, nothing_to_train


async def policy_distillation(ctx: StageContext, inputs: Inputs) -> Output:
    """Fine-tune the policy on this iteration's refined actions, or on those of successful episodes."""
    if ctx.config.algorithm == "rft":
        return await rejection_fine_tuning(ctx, inputs)
    refinements: list[Refinement] = inputs.rows("refinements")
    targets = inputs.rows("corrected_targets") if inputs.tables.get("corrected_targets") else []
    transitions = load_drawn(inputs, [row.transition_id for row in (*refinements, *targets)])
    main = Source("refinements", refined_examples(ctx, refinements, transitions))
    if not main.examples:
        raise nothing_to_train(
            "refined actions", refinements,
            "the policy stays as it is; roles.refine.structured: true has actions written in the environment's form",
        )  # fmt: skip
    samples = inputs.rows("replay_samples") if targets else []
    other = Source("corrected_targets", critic_examples(ctx, targets, samples, transitions))
    shared = ctx.config.parameters == "shared" and ctx.config.has_critic
    trained = await fine_tune(ctx, section="policy", main=main, other=other, moves_target=shared)
    return Output(
        tables={"training_rows": trained.rows, "training_steps": trained.steps},
        rows_in=len(main.examples),
        adapters={"policy": "adapter", "target": "target"} if shared else {"policy": "adapter"},
        metrics=trained.metrics,
    )


async def rejection_fine_tuning(ctx: StageContext, inputs: Inputs) -> Output:
    """Fine-tune the policy on `replay.transitions` valid actions of successful episodes (all, if there are fewer).

    Raises:
        StageFailed: no episode has succeeded yet.
    """
    won = inputs.scan("episodes").filter(pl.col("success"), pl.col("split") == "train").select("episode_id")
    steps = inputs.scan("transitions").filter(pl.col("action_valid")).join(won, on="episode_id", how="semi")
    ids = steps.select("transition_id").collect()["transition_id"].to_list()
    if not ids:
        raise StageFailed(
            "no training episode has succeeded yet, so there is nothing to fine-tune on; raise rollout.episodes or "
            "rollout.uniform_until"
        )
    stream = random.Random(derive_seed(ctx.config.seed, "rejection", ctx.iteration))
    drawn = stream.sample(ids, min(ctx.config.replay.transitions, len(ids)))
    transitions = load_drawn(inputs, drawn)
    main = Source("transitions", drawn_examples(ctx, (transitions[i] for i in drawn)))
    trained = await fine_tune(ctx, section="policy", main=main, moves_target=False)
    return Output(
        tables={"training_rows": trained.rows, "training_steps": trained.steps},
        rows_in=len(drawn),
        adapters={"policy": "adapter"},
        metrics={**trained.metrics, "successful_transitions": float(len(ids))},
    )


def _inputs(resolve: Resolver) -> Inputs:
    if resolve.config.algorithm == "rft":
        played = resolve.replay(drawing=True)
        return Inputs(
            tables={"episodes": played, "transitions": played},
            adapters={"start": resolve.policy(), "target": None},
            files=resolve.optimizer("policy", "policy-distillation", resolve.iteration - 1),
        )
    mixed = bool(resolve.config.mix("policy"))
    if resolve.shared and resolve.config.has_critic:
        start, target = resolve.critic(), resolve.adapter("critic-sft", "target", resolve.iteration)
        carried_from = ("critic-sft", resolve.iteration)
    else:
        start, target = resolve.policy(), None
        carried_from = ("policy-distillation", resolve.iteration - 1)
    return Inputs(
        tables={
            "refinements": [resolve.here("refinement")],
            "corrected_targets": [resolve.here("cot-correction")] if mixed else [],
            "replay_samples": [resolve.here("bellman-targets")] if mixed else [],
            "transitions": resolve.replay(),
        },
        adapters={"start": start, "target": target},
        files=resolve.optimizer("policy", *carried_from),
    )


STAGE = Stage(
    name="policy-distillation",
    version=3,
    pool="training",
    tables=(TrainingRow, TrainingStep),
    config=(
        "environment",
        "algorithm",
        "policy",
        "target",
        "parameters",
        "backup",
        "anchor",
        "replay.transitions",
        "roles.policy.tool_calls",
        "roles.policy.max_tokens",
        "roles.predict.max_tokens",
    ),
    roles=(),
    templates=("policy", "predict"),
    inputs=_inputs,
    run=policy_distillation,
)
