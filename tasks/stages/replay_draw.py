"""Stage replay-draw: draw transitions from replay for algorithms that have no stage bellman-targets.

Algorithms without a critic (self_distillation) improve actions at these states. No critic scores priorities there,
so the draw is uniform.
"""

from schemas.config import Config
from schemas.rows import ReplaySample, Transition
from tasks.datasets.drawn_transitions import draw_samples, measure_replay
from tasks.runtime.algorithm import Algorithm
from tasks.runtime.context import StageContext
from tasks.runtime.lineage import Resolver
from tasks.runtime.stage import Bound, Inputs, Output, Stage


async def replay_draw(ctx: StageContext) -> Output:
    """Draw `replay.transitions` transitions.

    Raises:
        StageFailed: there is nothing to draw from.
    """
    samples = draw_samples(ctx)
    distinct = len({sample.transition_id for sample in samples})
    return Output(
        tables={"replay_samples": list(samples)},
        rows_in=len(samples),
        metrics={"distinct_transitions": float(distinct), **measure_replay(ctx, samples)},
    )


def _inputs(resolve: Resolver) -> Inputs:
    return Inputs(
        tables={
            "transitions": resolve.replay(drawing=True),
            "replay_samples": resolve.upto("replay-draw", resolve.iteration - 1),
        }
    )


def _bound(config: Config, algorithm: Algorithm) -> Bound:
    return Bound(0, 0, f"{config.replay.transitions} transitions drawn uniformly")


STAGE = Stage(
    name="replay-draw",
    version=1,
    pool="orchestration",
    reads=(Transition, ReplaySample),
    writes=(ReplaySample,),
    config=("replay",),
    roles=(),
    templates=(),
    inputs=_inputs,
    bound=_bound,
    run=replay_draw,
)
