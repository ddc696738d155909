"""Stage policy-distillation: L2 = -w log pi_theta(a|s) under the plain policy prompt, over the actions that the
algorithm trains its policy on; w is 1, or the soft weight of a sampled action (algorithm sac). Turns that the policy
sampled itself have the clipped-ratio loss instead (`tasks.training.clipped_ratio`).

With shared parameters, critic rows are mixed into every batch, and the target parameters follow after every step. With
separate adapters, or without a critic, the policy alone trains.
"""

from schemas.config import Config
from schemas.rows import (
    ActionValue,
    Advantage,
    CorrectedTarget,
    Demonstration,
    Episode,
    Refinement,
    ReplaySample,
    SampledAction,
    TdTarget,
    TrainingRow,
    TrainingStep,
    Transition,
)
from tasks.measures.entropy import action_entropy
from tasks.runtime.algorithm import Algorithm
from tasks.runtime.context import StageContext
from tasks.runtime.lineage import Resolver
from tasks.runtime.stage import Bound, Inputs, Output, Stage
from tasks.text.formats import read_action
from tasks.training.fine_tuning import Source, fine_tune, label_bound, training_steps


async def policy_distillation(ctx: StageContext) -> Output:
    """Fine-tune the policy.

    Raises:
        StageFailed: there is no action to train on, and the algorithm does not allow for that.
    """
    examples, metrics = ctx.algorithm.distils.load(ctx)
    form = ctx.environment.action_format
    actions = (read_action("".join(example.segments), form).action for example in examples)
    shared = ctx.config.parameters == "shared" and ctx.algorithm.has_critic
    trained = await fine_tune(
        ctx,
        section="policy",
        main=Source(ctx.algorithm.distils.table, examples),
        other=_critic_rows(ctx),
        moves_target=shared,
        may_be_none=ctx.algorithm.distils.may_be_none,
    )
    return Output(
        tables={"training_rows": trained.rows, "training_steps": trained.steps},
        rows_in=len(examples),
        adapters={"policy": "adapter", "target": "target"} if shared else {"policy": "adapter"},
        metrics={**trained.metrics, **metrics, "distilled_action_entropy": action_entropy(actions)},
    )


def _critic_rows(ctx: StageContext) -> Source | None:
    if not ctx.algorithm.mix(ctx.config, "policy"):
        return None
    how = ctx.algorithm.critic
    return Source(how.table, how.remake(ctx))


def _inputs(resolve: Resolver) -> Inputs:
    read = resolve.algorithm.distils.read(resolve)
    if resolve.algorithm.mix(resolve.config, "policy"):
        how = resolve.algorithm.critic
        read.tables[how.table] = [resolve.here(how.stage)]
        read.tables["replay_samples"] = [resolve.replay_samples()]
    read.tables["demonstrations"] = resolve.demonstrations("policy")
    if resolve.shared and resolve.algorithm.has_critic:
        start, target = resolve.critic(), resolve.adapter("critic-sft", "target", resolve.iteration)
        carried_from, heads = ("critic-sft", resolve.iteration), resolve.critic_heads()
    else:
        start, target = resolve.policy(), None
        carried_from = ("policy-distillation", resolve.iteration - 1)
        heads = resolve.value_heads() if resolve.algorithm.has_values else {}
    return Inputs(
        tables=read.tables,
        adapters={"start": start, "target": target, **resolve.anchor()},
        files={**resolve.optimizer("policy", *carried_from), **heads},
    )


def _bound(config: Config, algorithm: Algorithm) -> Bound:
    rows = algorithm.distils.count(config)
    steps = training_steps(
        config.policy, rows, algorithm.mix(config, "policy") + config.policy.rehearse_share
    )
    note = f"up to {rows * config.policy.epochs} rows, {steps} steps"
    return Bound(0, label_bound(config, config.policy, steps), note)


STAGE = Stage(
    name="policy-distillation",
    version=4,
    pool="training",
    reads=(
        Refinement,
        Episode,
        Transition,
        Advantage,
        SampledAction,
        ActionValue,
        CorrectedTarget,
        TdTarget,
        ReplaySample,
        Demonstration,
    ),
    writes=(TrainingRow, TrainingStep),
    adapters=("policy", "target"),
    config=(
        "environment",
        "algorithm",
        "policy",
        "target",
        "parameters",
        "backup",
        "anchor",
        "soft_q.value_coefficient",
        "policy_gradient",
        "rollout.max_steps",
        "replay.transitions",
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
    run=policy_distillation,
)
