"""Questions about one iteration, answered from the views that SQL reads (`storage.sql.measures`).

They count what there was when the iteration ended: later iterations change nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import duckdb


@dataclass(frozen=True)
class Success:
    """Success on the eval tasks after an iteration: a rate with its 95% Wilson interval, over so many episodes."""

    iteration: int
    rate: float
    low: float | None
    high: float | None
    episodes: int


@dataclass(frozen=True)
class Table:
    """Some rows about the iteration, under a title; None stands for no value."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]


class Measured:
    """The questions about one iteration to the views of SQL.

    Args:
        database: from `storage.sql.views.connect`.
        run, iteration: which; $1 and $2 of every query.
    """

    def __init__(self, database: duckdb.DuckDBPyConnection, run: str, iteration: int) -> None:
        self._database, self._here = database, [run, iteration]

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        return self._database.execute(query, self._here).fetchall()

    def row(self, query: str) -> tuple[Any, ...]:
        """The only row of a query that sums up; over nothing it gives one too."""
        (row,) = self.rows(query)
        return row

    def success(self) -> tuple[Success | None, Success | None]:
        """That of this iteration, and of the last evaluation before."""
        found = [
            Success(*row)
            for row in self.rows(
                "select iteration, success_rate, success_low, success_high, episodes from evaluations "
                "where run = $1 and iteration <= $2 and split = 'eval' and success_rate is not null "
                "order by iteration desc limit 2"
            )
        ]
        here = found.pop(0) if found and found[0].iteration == self._here[1] else None
        return here, found[0] if found else None

    def baseline(self) -> tuple[str, float] | None:
        """A player without a model, and its success rate."""
        found = self.rows(
            "select baseline, baseline_success_rate from evaluations where run = $1 and iteration = $2 and "
            "split = 'eval' and baseline_success_rate is not null"
        )
        return found[0] if found else None

    def refined(self) -> dict[str, int]:
        """Proposals, distilled ones, and those of them that are unchanged; empty without refinement."""
        found = self.rows(
            "select proposals, distilled, distilled - changed from refinement_effect where run = $1 and iteration = $2"
        )
        return dict(zip(("proposals", "distilled", "unchanged"), found[0], strict=True)) if found else {}

    def leaked(self) -> dict[str, int]:
        """Thoughts, and those with a leak before correction; empty without thoughts."""
        thoughts, leaking = self.row(
            "select sum(thoughts)::bigint, sum(leaking)::bigint from leakage where run = $1 and iteration = $2"
        )
        return {} if thoughts is None else {"thoughts": thoughts, "leaked": leaking}

    def malformed(self) -> dict[str, int]:
        """Texts of backup, successor, evaluator and refiner, and those without their format, or cut."""
        texts, bad = self.row(
            f"select count(*), count_if(bad) from ({_MALFORMED}) where run = $1 and iteration = $2"
        )
        return {"texts": texts, "malformed": bad} if texts else {}

    def tables(self) -> Iterator[Table]:
        """What a report shows beneath its first lines."""
        for title, query in _TABLES.items():
            asked = self._database.execute(query, self._here)
            columns, rows = tuple(column[0] for column in asked.description), asked.fetchall()
            if rows:
                yield Table(title, columns, rows)


_MALFORMED = """
select run, iteration, malformed as bad from bellman_targets where generation is not null
union all select run, iteration, malformed from futures where generation is not null
union all select run, iteration, optimal is null from critiques
          where generation is not null and status <> 'engine_error'
union all select run, iteration, action = '' or status in ('cut', 'unreadable_choice') from refinements
          where kind = 'refined' and generation is not null and status <> 'engine_error'
"""

_TABLES = {
    "Stages": "select stage, rows_in, rows_out, rejected_share, cut_share, tokens, seconds from stage_summary "
    "join (select run, iteration, stage, started_at from stages where state <> 'superseded') "
    "using (run, iteration, stage) where run = $1 and iteration = $2 order by started_at, stage",
    "Tokens by role": "select role, sum(texts)::bigint as texts, sum(prompt_tokens)::bigint as read, "
    "sum(completion_tokens)::bigint as written from token_costs where run = $1 and iteration = $2 "
    "group by role order by role",
    "Critic: verdicts on actions that were played": "select verdicts, auroc, mean_verdict, success_rate, brier "
    "from critic_fidelity where run = $1 and iteration = $2",
    "Refinement": "select * exclude (run, iteration) from refinement_effect where run = $1 and iteration = $2",
    "Thoughts": "select * exclude (run, iteration) from leakage where run = $1 and iteration = $2 "
    "order by source_table",
    "Replay: draws by age": "select age, draws, share from replay_age where run = $1 and iteration = $2 order by age",
}
"""Title -> its query."""
