"""The page's figures: each iteration with its measures, and the losses of each training stage. Of all data."""

from collections.abc import Sequence
from typing import Any

import duckdb

LOSS_POINTS = 300
"""Of a longer loss curve, the means of as many stretches of equal length."""

ITERATIONS = """
with known as (
    select run, iteration, sum(tokens)::bigint as stage_tokens, sum(seconds) as stage_seconds,
           count_if(state = 'stale')::bigint as stale
    from stages where state <> 'superseded' and run in (select unnest($1)) group by all
), played as (
    select run, iteration, count(*) as train_episodes, avg(success::int) as train_success_rate
    from episodes where split = 'train' and status = 'ok' group by all
), leaks as (
    select run, iteration, sum(leaking)::bigint as leaking, sum(thoughts)::bigint as thoughts from leakage group by all
)
select known.*, train_episodes, train_success_rate, policy_version, c.success_rate, success_low, success_high,
       baseline_success_rate, environment_steps, tokens, seconds, auroc, brier, proposals, distilled, changed,
       leaking, thoughts
from known
left join played using (run, iteration)
left join learning_curve c using (run, iteration)
left join critic_fidelity using (run, iteration)
left join refinement_effect using (run, iteration)
left join leaks using (run, iteration)
order by run, iteration
"""

LOSSES = f"""
with numbered as (
    select *, row_number() over (partition by run, stage order by iteration, step) - 1 as n,
           count(*) over (partition by run, stage) as steps
    from training_steps where status = 'ok' and run in (select unnest($1))
), means as (
    select run, stage, min(n) as step, avg(loss) as loss
    from numbered group by run, stage, n // greatest(1, ceil(steps / {LOSS_POINTS})::bigint)
)
select run, stage, list(step order by step) as step, list(loss order by step) as loss
from means group by run, stage order by run, stage
"""


def overview(database: duckdb.DuckDBPyConnection, runs: Sequence[str]) -> dict[str, Any]:
    """The figures of the given runs.

    Args:
        database: from `storage.sql.views.connect`.
        runs: their names.

    Returns:
        `iterations`: a row each, with success and its interval, cost, and what critic and refiner did. `losses`: for
        each run and training stage the steps (over all iterations of the run) and the loss in nats per token.
    """
    return {"iterations": rows(database, ITERATIONS, runs), "losses": rows(database, LOSSES, runs)}


def rows(database: duckdb.DuckDBPyConnection, query: str, wanted: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of a query whose one parameter is a list of names."""
    found = database.sql(query, params=[list(wanted)]).to_arrow_table().to_pylist()
    return [{name: value for name, value in row.items() if value is not None} for row in found]
