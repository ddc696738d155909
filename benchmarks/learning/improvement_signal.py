"""What an improvement step was worth on the line walk, against exact Q*: its verdicts, and the actions it distils."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from storage.store import Store, scan_parts
from tasks.environments.exact import TIE, auroc
from tasks.environments.line_walk import LineWalk
from tasks.environments.line_walk.text import ACTIONS, read_observation


@dataclass(frozen=True)
class Signal:
    """The signal of one improvement. A text that is no action is worth 0 and not optimal.

    Attributes:
        judged_value: mean Q* of the actions to improve.
        distilled_value: mean Q* of the actions that the policy is trained on; nan if there is none.
        verdict_auroc: of the verdicts on all critiqued actions (their probabilities, where they were scored) against
            "optimal under Q*"; nan if all these actions are optimal, or none is.
    """

    judged_value: float
    distilled_value: float
    verdict_auroc: float


def improvement_signal(store: Store, world: LineWalk, run: str, iteration: int) -> Signal | None:
    """The signal of an iteration; None if it improved nothing."""
    critique, refinement = (store.committed(run, stage, iteration) for stage in ("critique", "refinement"))
    if critique is None or refinement is None:
        return None
    played = [made for i in range(iteration + 1) if (made := store.committed(run, "rollout", i)) is not None]
    seen = scan_parts(played, "transitions").select("transition_id", "task_id", "observation")
    exact = {line.name: (line.goal, line.q_star(world.gamma)) for line in world.lines("train")}

    def value(task_id: str, observation: str, action: str) -> tuple[float, bool]:
        """Q* of an action, and whether it is optimal."""
        if action not in ACTIONS:
            return 0.0, False
        goal, values = exact[task_id.split("/")[1]]
        of_state = values[goal + int(read_observation(observation).at)]
        q = float(of_state[ACTIONS.index(action)])
        return q, q > of_state.max() - TIE

    def values(rows: pl.LazyFrame) -> list[tuple[float, bool]]:
        known = rows.join(seen, on="transition_id").select("task_id", "observation", "action").collect()
        return [value(*row) for row in known.rows()]

    critiques = scan_parts([critique, refinement], "critiques").filter(pl.col("optimal").is_not_null())
    judged = critiques.join(seen, on="transition_id").collect()
    scores = judged.select(pl.col("yes_probability").fill_null(pl.col("optimal").cast(float))).to_series()
    told = [value(*row) for row in judged.select("task_id", "observation", "action").rows()]
    distilled = values(refinement.scan("refinements").filter("distil"))
    return Signal(
        judged_value=_mean([q for q, _ in values(critique.scan("critiques").filter(pl.col("round") == 0))]),
        distilled_value=_mean([q for q, _ in distilled]),
        verdict_auroc=auroc(scores.to_numpy(), [optimal for _, optimal in told]),
    )


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else float("nan")
