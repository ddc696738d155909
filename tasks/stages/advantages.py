"""Stage advantages: how much better each action just played was than a baseline, for policy-gradient algorithms.

The estimator is the algorithm's (`Algorithm.advantages`); no model is asked.
"""

from statistics import fmean

from schemas.config import Config
from schemas.rows import Advantage, Episode, Transition, Value
from tasks.runtime.algorithm import Algorithm
from tasks.runtime.context import StageContext
from tasks.runtime.lineage import Resolver
from tasks.runtime.stage import Bound, Inputs, Output, Stage


async def advantages(ctx: StageContext) -> Output:
    """A row for every transition of the iteration's rollout."""
    rows = ctx.algorithm.estimates(ctx)
    return Output(tables={"advantages": rows}, rows_in=len(rows), metrics=measure(rows))


def measure(rows: list[Advantage]) -> dict[str, float]:
    """The mean absolute advantage of the rows that can be trained on; groups, where there are any, and those without
    spread."""
    sizes = [abs(row.advantage) for row in rows if row.status == "ok" and row.advantage is not None]
    found = {"mean_absolute_advantage": fmean(sizes) if sizes else 0.0}
    if groups := {row.group_id for row in rows if row.group_id is not None}:
        flat = {row.group_id for row in rows if row.status == "no_spread"}
        found |= {"groups": float(len(groups)), "groups_without_spread": float(len(flat))}
    return found


def _inputs(resolve: Resolver) -> Inputs:
    here = [resolve.here("rollout")]
    tables = {"episodes": here, "transitions": here}
    return Inputs(
        tables=tables | ({"values": [resolve.here("values")]} if resolve.algorithm.has_values else {})
    )


def _bound(config: Config, algorithm: Algorithm) -> Bound:
    episodes = config.rollout.episodes * config.rollout.repeats
    return Bound(0, 0, f"the turns of {episodes} episodes")


STAGE = Stage(
    name="advantages",
    version=1,
    pool="orchestration",
    reads=(Episode, Transition, Value),
    writes=(Advantage,),
    config=("algorithm", *(f"policy_gradient.{name}" for name in ("divide_by_std", "discount", "trace"))),
    roles=(),
    templates=(),
    inputs=_inputs,
    bound=_bound,
    run=advantages,
)
