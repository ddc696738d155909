"""What was made of the draws of a step, as JSON: backups, critiques, refinements, and what was trained on."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from tasks.export.view.columns import (
    CRITIQUE,
    FUTURE,
    LABEL,
    REFINEMENT,
    TARGET,
    Row,
    compact,
    grouped,
    only,
    provenance,
)
from tasks.export.view.marks import mark_leaks
from tasks.text.leaks import SOURCE_OF_THOUGHT, find_leaks

_BY_SAMPLE = "select * from {} where sample_id in (select unnest($1)) order by {}"
_LARGE = "backup_logprobs, backup_draw_logprobs, backup_top_ids, backup_top_logprobs"
_TRAINED = """
select source_table, source_id, stage, role, adapter_version, weight, uses from training_rows
where source_table in ('transitions', 'corrected_targets', 'refinements') and source_id in (select unnest($1))
order by iteration, stage
"""


class Made:
    """What was made of some draws, and of the transitions that they drew.

    Args:
        read: the rows of a query with the given ids as its parameter.
        ngram: what counted as a leak when a row was made.
        samples: ids of draws.
        transitions: ids of transitions.
    """

    def __init__(
        self, read: Callable[[str, Sequence[str]], list[Row]], ngram: Callable[[Row], int], samples: Sequence[str],
        transitions: Sequence[str],
    ) -> None:  # fmt: skip
        def of(table: str, order: str) -> list[Row]:
            return read(_BY_SAMPLE.format(table, order), samples)

        self.ngram = ngram
        targets, refinements = of("bellman_targets", "target_id"), of("refinements", "round, refinement_id")
        self.targets = grouped(targets, "sample_id")
        self.critiques = grouped(of("critiques", "round, critique_id"), "sample_id")
        self.refinements = grouped(refinements, "sample_id")
        query = f"select * exclude ({_LARGE}) from corrected_targets where target_id in (select unnest($1))"
        labels = read(query, [row["target_id"] for row in targets])
        self.labels = {row["target_id"]: row for row in labels}
        query = "select * from futures where critique_id in (select unnest($1)) order by future_id"
        judged = [row["critique_id"] for found in self.critiques.values() for row in found]
        self.futures = grouped(read(query, judged), "critique_id")
        sources = [
            *transitions,
            *(row["corrected_id"] for row in labels),
            *(row["refinement_id"] for row in refinements),
        ]
        self.trained: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
        for row in read(_TRAINED, sources):
            self.trained[row.pop("source_table"), row.pop("source_id")].append(row)
        query = "select * from {} where transition_id in (select unnest($1))"
        self._values = grouped(read(query.format('"values"'), transitions), "transition_id")
        self._advantages = grouped(read(query.format("advantages"), transitions), "transition_id")

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
            **only(sample, ("sample_id", "iteration", "priority", "probability", "weight")),
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
            **only(row, TARGET),
            "thought": mark_leaks(before, (label or {}).get("leaks", ())),
            "by": provenance(row.get("generation")),
            "next_action_by": provenance(row.get("next_action_generation")),
            "next_future_by": provenance(row.get("next_future_generation")),
            "label": label and compact({
                **only(label, LABEL),
                "by": provenance(label.get("generation")),
                "trained": self.trained["corrected_targets", label["corrected_id"]],
            }),
        })  # fmt: skip

    def _critique(self, row: Row) -> Row:
        return compact({
            **only(row, CRITIQUE),
            "by": provenance(row.get("generation")),
            "action_by": provenance(row.get("action_generation")),
            "future": [
                compact({**only(future, FUTURE), "by": provenance(future.get("generation"))})
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
            **only(row, REFINEMENT),
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
