"""Stage policy-distillation: L2 = -log pi_theta(a_r|s) under the plain policy prompt, over the refined
actions.

With shared parameters critic rows are mixed into every batch and the target goes on following; separate
adapters train the policy alone.
"""

from schemas.rows import Refinement, TrainingRow, TrainingStep
from tasks.context import StageContext
from tasks.examples import critic_examples, refined_examples
from tasks.fine_tuning import Source, fine_tune
from tasks.replayed import load_replayed
from tasks.stage import Inputs, Output, Resolver, Stage


async def policy_distillation(ctx: StageContext, inputs: Inputs) -> Output:
    """Fine-tune the policy on this iteration's refined actions."""
    refinements: list[Refinement] = inputs.rows("refinements")
    targets = inputs.rows("corrected_targets") if inputs.tables.get("corrected_targets") else []
    transitions = load_replayed(inputs, [row.transition_id for row in (*refinements, *targets)])
    main = Source("refinements", refined_examples(ctx, refinements, transitions))
    samples = inputs.rows("replay_samples") if targets else []
    other = Source("corrected_targets", critic_examples(ctx, targets, samples, transitions))
    shared = ctx.config.parameters == "shared"
    trained = await fine_tune(ctx, section="policy", main=main, other=other, moves_target=shared)
    return Output(
        tables={"training_rows": trained.rows, "training_steps": trained.steps},
        rows_in=len(main.examples),
        adapters={"policy": "adapter", "target": "target"} if shared else {"policy": "adapter"},
        metrics=trained.metrics,
    )


def _inputs(resolve: Resolver) -> Inputs:
    mixed = bool(resolve.config.mix("policy"))
    if resolve.shared:
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
            "transitions": resolve.upto("rollout", resolve.iteration),
        },
        adapters={"start": start, "target": target},
        files=resolve.optimizer("policy", *carried_from),
    )


STAGE = Stage(
    name="policy-distillation",
    version=1,
    pool="training",
    tables=(TrainingRow, TrainingStep),
    config=("environment", "policy", "target", "parameters"),
    roles=(),
    templates=("policy", "predict"),
    inputs=_inputs,
    run=policy_distillation,
)
