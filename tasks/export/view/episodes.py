"""An episode as JSON: its steps, and all that was made of each one, from replay to what was trained on.

Keys are the columns' names where a value is a column. NULL, empty texts and empty lists are left out.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from statistics import fmean
from typing import Any

import duckdb

from schemas.config import Config, CorrectionSection
from storage.store import Store
from tasks.export.view.marks import mark_leaks, shade, tokenizer_of
from tasks.export.view.overview import rows
from tasks.pipeline.iterations import frozen_config
from tasks.text.leaks import SOURCE_OF_THOUGHT, find_leaks

DRAWS = 4
"""Of a step that was drawn from replay more often, the newest draws."""

Row = dict[str, Any]
_BY_SAMPLE = "select * from {} where sample_id in (select unnest($1)) order by {}"
_DRAWN = (
    "select * from replay_samples where transition_id in (select unnest($1)) qualify row_number() over "
    f"(partition by transition_id order by iteration desc, draw desc) <= {DRAWS} order by iteration desc, draw desc"
)
_LARGE = "backup_logprobs, backup_draw_logprobs, backup_top_ids, backup_top_logprobs"
_TRAINED = """
select source_table, source_id, stage, role, adapter_version, weight, uses from training_rows
where source_table in ('transitions', 'corrected_targets', 'refinements') and source_id in (select unnest($1))
order by iteration, stage
"""


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
        made = _Made(self, [sample["sample_id"] for sample in drawn], known)
        draws = _grouped(drawn, "transition_id")
        by_episode = _grouped(steps, "episode_id")
        episodes = {row["episode_id"]: row for row in found}
        return [
            compact({
                **_only(episodes[i], _EPISODE),
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

    def _step(self, steps: Sequence[Row], number: int, draws: Mapping[str, list[Row]], made: "_Made") -> Row:
        row = steps[number]
        follows = steps[number + 1]["observation"] if number + 1 < len(steps) else None
        seen = [text for step in steps[:number] for text in (step["observation"], step["raw_action"])]
        samples = draws[row["transition_id"]]
        return compact({
            **_only(row, _STEP),
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


class _Made:
    """What was made of some draws."""

    def __init__(self, episodes: Episodes, samples: Sequence[str], transitions: Sequence[str]) -> None:
        def of(table: str, order: str) -> list[Row]:
            return episodes._rows(_BY_SAMPLE.format(table, order), samples)

        self.ngram = episodes.ngram
        targets, refinements = of("bellman_targets", "target_id"), of("refinements", "round, refinement_id")
        self.targets = _grouped(targets, "sample_id")
        self.critiques = _grouped(of("critiques", "round, critique_id"), "sample_id")
        self.refinements = _grouped(refinements, "sample_id")
        query = f"select * exclude ({_LARGE}) from corrected_targets where target_id in (select unnest($1))"
        labels = episodes._rows(query, [row["target_id"] for row in targets])
        self.labels = {row["target_id"]: row for row in labels}
        query = "select * from futures where critique_id in (select unnest($1)) order by future_id"
        judged = [row["critique_id"] for found in self.critiques.values() for row in found]
        self.futures = _grouped(episodes._rows(query, judged), "critique_id")
        sources = [
            *transitions,
            *(row["corrected_id"] for row in labels),
            *(row["refinement_id"] for row in refinements),
        ]
        self.trained: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
        for row in episodes._rows(_TRAINED, sources):
            self.trained[row.pop("source_table"), row.pop("source_id")].append(row)
        query = "select * from {} where transition_id in (select unnest($1))"
        self._values = _grouped(episodes._rows(query.format('"values"'), transitions), "transition_id")
        self._advantages = _grouped(episodes._rows(query.format("advantages"), transitions), "transition_id")

    def signals(self, transition_id: str) -> Row:
        """The step's value and advantage, where a policy gradient has them."""
        values, advantages = self._values[transition_id], self._advantages[transition_id]
        return {
            "value": values[0].get("value") if values else None,
            "advantage": advantages[0].get("advantage") if advantages else None,
        }

    def draw(self, sample: Row, visible: Sequence[str]) -> Row:
        """A draw: the backup of the step, and how an action at its state was improved."""
        critiques = self.critiques[sample["sample_id"]]
        return compact({
            **_only(sample, ("sample_id", "iteration", "priority", "probability", "weight")),
            "target": [self._target(row) for row in self.targets[sample["sample_id"]]],
            "critique": [self._critique(row) for row in critiques],
            "refinement": [
                self._refinement(row, critiques, visible) for row in self.refinements[sample["sample_id"]]
            ],
        })  # fmt: skip

    def _target(self, row: Row) -> Row:
        label = self.labels.get(row["target_id"])
        before = label["thought_before"] if label else row["thought"]
        return compact({
            **_only(row, _TARGET),
            "thought": mark_leaks(before, (label or {}).get("leaks", ())),
            "by": provenance(row.get("generation")),
            "next_action_by": provenance(row.get("next_action_generation")),
            "next_future_by": provenance(row.get("next_future_generation")),
            "label": label and compact({
                **_only(label, _LABEL),
                "by": provenance(label.get("generation")),
                "trained": self.trained["corrected_targets", label["corrected_id"]],
            }),
        })  # fmt: skip

    def _critique(self, row: Row) -> Row:
        return compact({
            **_only(row, _CRITIQUE),
            "by": provenance(row.get("generation")),
            "action_by": provenance(row.get("action_generation")),
            "future": [
                compact({**_only(future, _FUTURE), "by": provenance(future.get("generation"))})
                for future in self.futures[row["critique_id"]]
            ],
        })  # fmt: skip

    def _refinement(self, row: Row, critiques: Sequence[Row], visible: Sequence[str]) -> Row:
        leaks: Iterable[str] = ()
        if row.get("leak_before"):
            known = [critique for critique in critiques if critique["round"] <= row["round"]]
            own = [text for c in critiques[:1] for text in (c["thought"], c.get("action_reasoning") or "")]
            leaks = find_leaks(
                row["thought_before"], privileged=self._privileged(known),
                visible=[*visible, *own, row["action"]], source=SOURCE_OF_THOUGHT, ngram=self.ngram(row),
            ).passages  # fmt: skip
        return compact({
            **_only(row, _REFINEMENT),
            "thought_before": mark_leaks(row["thought_before"], leaks),
            "by": provenance(row.get("generation")),
            "correction_by": provenance(row.get("correction_generation")),
            "trained": self.trained["refinements", row["refinement_id"]],
        })  # fmt: skip

    def _privileged(self, critiques: Iterable[Row]) -> list[str]:
        texts = []
        for row in critiques:
            futures = [f["description"] for f in self.futures[row["critique_id"]] if f["status"] == "ok"]
            texts += [row["critique"], *futures]
        return texts


BY = ("model_version", "temperature", "prompt_tokens", "completion_tokens", "finish_reason")
_STATUS = ("status", "error")
_EPISODE = (
    "episode_id", "run", "iteration", "split", "environment", "task_id", "policy_version", "reward", "game_reward",
    "success", "done", "truncated", "invalid_actions", *_STATUS,
)  # fmt: skip
_STEP = (
    "transition_id", "observation", "raw_action", "thought", "reasoning", "action", "action_valid", "reward",
    "success", "done", "truncated", "policy_version", *_STATUS,
)  # fmt: skip
_TARGET = (
    "target_id", "terminal", "next_action_text", "next_future", "next_future_malformed", "description", "malformed",
    "reasoning", *_STATUS,
)  # fmt: skip
_LABEL = (
    "corrected_id", "verdict", "thought", "leak_before", "leak_after", "attempts", "label_reasoning",
    "reasoning_verdict", *_STATUS,
)  # fmt: skip
_CRITIQUE = (
    "critique_id", "round", "action_source", "action_text", "action", "optimal", "critique", "yes_probability",
    "reasoning", *_STATUS,
)  # fmt: skip
_FUTURE = ("future_id", "thought", "description", "malformed", "source", "policy_version", *_STATUS)
_REFINEMENT = (
    "refinement_id", "round", "kind", "action_text", "thought", "action", "valid", "changed", "verdict",
    "leak_before", "leak_after", "distil", "distil_reason", "label_reasoning", "reasoning", *_STATUS,
)  # fmt: skip


def provenance(generation: Mapping[str, Any] | None) -> list[Any] | None:
    """Who wrote a text, and how much: a page has tens of thousands of these, so they are lists in the order of BY."""
    return [generation[name] for name in BY] if generation is not None else None


def compact(row: Mapping[str, Any]) -> Row:
    """The row without what is NULL or empty, and without the status 'ok'."""
    return {
        name: value
        for name, value in row.items()
        if value is not None and value != "" and value != [] and (name, value) != ("status", "ok")
    }


def _only(row: Mapping[str, Any], names: Iterable[str]) -> Row:
    return {name: row[name] for name in names if name in row}


def _grouped(found: Iterable[Row], key: str) -> defaultdict[str, list[Row]]:
    groups: defaultdict[str, list[Row]] = defaultdict(list)
    for row in found:
        groups[row[key]].append(row)
    return groups
