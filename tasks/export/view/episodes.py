"""An episode as JSON: its steps, and all that was made of each one, from replay to what was trained on.

Keys are the columns' names where a value is a column. NULL, empty texts and empty lists are left out.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import fmean

import duckdb

from schemas.config import Config, CorrectionSection
from storage.store import Store
from tasks.export.view.columns import EPISODE, STEP, Row, compact, grouped, only, provenance
from tasks.export.view.made import Made
from tasks.export.view.marks import shade, tokenizer_of
from tasks.export.view.overview import rows
from tasks.pipeline.iterations import frozen_config

DRAWS = 4
"""Of a step that was drawn from replay more often, the newest draws."""

_DRAWN = (
    "select * from replay_samples where transition_id in (select unnest($1)) qualify row_number() over "
    f"(partition by transition_id order by iteration desc, draw desc) <= {DRAWS} order by iteration desc, draw desc"
)


class Episodes:
    """Reads episodes with what belongs to them.

    Args:
        store: the artifact store.
        database: from `storage.sql.views.connect`.
    """

    def __init__(self, store: Store, database: duckdb.DuckDBPyConnection) -> None:
        self._store, self._database = store, database
        self._config = lru_cache(self._frozen)

    def read(self, ids: Sequence[str]) -> list[Row]:
        """The given episodes, in their order."""
        found = self._rows("select * from episodes where episode_id in (select unnest($1))", ids)
        steps = self._rows(
            "select * from transitions where episode_id in (select unnest($1)) order by step", ids
        )
        known = [step["transition_id"] for step in steps]
        drawn = self._rows(_DRAWN, known)
        made = Made(self._rows, self.ngram, [sample["sample_id"] for sample in drawn], known)
        draws = grouped(drawn, "transition_id")
        by_episode = grouped(steps, "episode_id")
        episodes = {row["episode_id"]: row for row in found}
        return [
            compact({
                **only(episodes[i], EPISODE),
                "step": [self._step(by_episode[i], n, draws, made) for n in range(len(by_episode[i]))],
            })
            for i in ids
        ]  # fmt: skip

    def ngram(self, row: Row) -> int:
        """What counted as a leak when the row was made."""
        config = self._config(row["run"], row["iteration"])
        return (config.correction if config else CorrectionSection()).ngram

    def _rows(self, query: str, wanted: Sequence[str]) -> list[Row]:
        return rows(self._database, query, wanted)

    def _frozen(self, run: str, iteration: int) -> Config | None:
        return frozen_config(self._store, run, iteration)

    def _step(self, steps: Sequence[Row], number: int, draws: Mapping[str, list[Row]], made: "Made") -> Row:
        row = steps[number]
        follows = steps[number + 1]["observation"] if number + 1 < len(steps) else None
        seen = [text for step in steps[:number] for text in (step["observation"], step["raw_action"])]
        samples = draws[row["transition_id"]]
        return compact({
            **only(row, STEP),
            "next_observation": row["next_observation"] if row["next_observation"] != follows else None,
            "by": provenance(row.get("generation")),
            **self._tokens(row),
            **made.signals(row["transition_id"]),
            "trained": made.trained["transitions", row["transition_id"]],
            "draw": [made.draw(sample, [*seen, row["observation"]]) for sample in samples],
        })  # fmt: skip

    def _tokens(self, row: Row) -> Row:
        logprobs, by = row.get("logprobs"), row.get("generation")
        if not logprobs or by is None or len(logprobs) != len(row["token_ids"]):
            return {}
        config = self._config(row["run"], row["iteration"])
        tokenizer = tokenizer_of(config, by["engine"]) if config else None
        pieces = shade(tokenizer, row["token_ids"], logprobs) if tokenizer else None
        return {"tokens": pieces, "mean_logprob": round(fmean(logprobs), 3)}
