"""Stage replay-draw: draw transitions from replay where there are no Bellman targets to draw them for.

Algorithms without a critic (self_distillation) improve actions at these states. No critic scores priorities there,
so the draw is uniform.
"""

from schemas.rows import ReplaySample
from tasks.runtime.context import StageContext
from tasks.runtime.stage import Inputs, Output, Resolver, Stage
from tasks.stages.bellman_targets import draw_samples


async def replay_draw(ctx: StageContext, inputs: Inputs) -> Output:
    """Draw `replay.transitions` transitions.

    Raises:
        StageFailed: there is nothing to draw from.
    """
    samples = draw_samples(ctx, inputs)
    distinct = len({sample.transition_id for sample in samples})
    return Output(
        tables={"replay_samples": list(samples)},
        rows_in=len(samples),
        metrics={"distinct_transitions": float(distinct)},
    )


def _inputs(resolve: Resolver) -> Inputs:
    return Inputs(tables={"transitions": resolve.replay(drawing=True)})


STAGE = Stage(
    name="replay-draw",
    version=1,
    pool="orchestration",
    tables=(ReplaySample,),
    config=("replay",),
    roles=(),
    templates=(),
    inputs=_inputs,
    run=replay_draw,
)
