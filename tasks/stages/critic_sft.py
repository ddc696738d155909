"""Stage critic-sft: fine-tune the critic on what its algorithm gives it (`tasks.training.critic_rows`): a successor on
the corrected targets under the predict prompt, which shows only (s, a), or a value head under that prompt on TD targets
(algorithm sac).

Loss of a batch: mean over critic rows of w * NLL + mean over policy rows of NLL, NLL per token of the
completion; a value head has w * (Q - y)^2 / 2 in the place of w * NLL. Before the first update every label is scored:
p_i = max(0, mean over description tokens of log p_B - log p_theta), the priorities of the next draws. Uniform replay
(`replay.alpha: 0`, and without bellman-targets) needs none: nothing is scored, and table `priorities` is empty. After
every step the target parameters follow (EMA).
"""

import polars as pl

from schemas.config import Config
from schemas.rows import (
    ActionValue,
    CorrectedTarget,
    Demonstration,
    Priority,
    Refinement,
    ReplaySample,
    SampledAction,
    TdTarget,
    TrainingRow,
    TrainingStep,
    Transition,
)
from tasks.runtime.algorithm import Algorithm
from tasks.runtime.context import StageContext
from tasks.runtime.lineage import Resolver
from tasks.runtime.stage import Bound, Inputs, Output, Stage
from tasks.training.fine_tuning import Source, fine_tune, label_bound, training_steps


async def critic_sft(ctx: StageContext) -> Output:
    """Fine-tune the critic; with shared parameters policy rows are mixed into every batch.

    Raises:
        StageFailed: there is nothing to train on.
    """
    how = ctx.algorithm.critic
    examples, other = how.load(ctx)
    scores = how.scores(ctx.config)
    trained = await fine_tune(
        ctx, section="critic", main=Source(how.table, examples), other=other, moves_target=True, scores=scores
    )
    metrics, priorities = trained.metrics, list[Priority]()
    if scores:
        priorities = how.priorities(ctx, trained.result)
        metrics = {**metrics, "mean_priority": sum(p.priority for p in priorities) / len(priorities)}
    return Output(
        tables={"training_rows": trained.rows, "training_steps": trained.steps, "priorities": priorities},
        rows_in=ctx.inputs.scan(how.table).select(pl.len()).collect().item(),
        adapters={"critic": "adapter", "target": "target"},
        metrics=metrics,
    )


def _inputs(resolve: Resolver) -> Inputs:
    before = resolve.iteration - 1
    carried_from = (resolve.last_trained(before) if resolve.shared else "critic-sft", before)
    return Inputs(
        tables={
            **resolve.algorithm.critic.read(resolve).tables,
            "demonstrations": resolve.demonstrations("critic"),
        },
        adapters={"start": resolve.critic_start(), "target": resolve.target(), **resolve.anchor()},
        files={**resolve.optimizer("critic", *carried_from), **resolve.value_heads()},
    )


def _bound(config: Config, algorithm: Algorithm) -> Bound:
    rows, section = config.replay.transitions, config.critic
    steps = training_steps(section, rows, algorithm.mix(config, "critic") + section.rehearse_share)
    return Bound(0, label_bound(config, section, steps), f"{rows * section.epochs} rows, {steps} steps")


STAGE = Stage(
    name="critic-sft",
    version=5,
    pool="training",
    reads=(
        CorrectedTarget,
        TdTarget,
        ReplaySample,
        Refinement,
        SampledAction,
        ActionValue,
        Transition,
        Demonstration,
    ),
    writes=(TrainingRow, TrainingStep, Priority),
    adapters=("critic", "target"),
    config=(
        "environment",
        "critic",
        "target",
        "parameters",
        "backup",
        "anchor",
        "soft_q.value_coefficient",
        "replay.alpha",
        "roles.policy.tool_calls",
        "roles.policy.max_tokens",
        "roles.policy.thinking",
        "correction.reasoning_chars",
        "roles.policy.structured",
        "roles.policy.line_chars",
        "roles.predict.max_tokens",
    ),
    roles=(),
    templates=("policy", "predict"),
    inputs=_inputs,
    bound=_bound,
    run=critic_sft,
)
