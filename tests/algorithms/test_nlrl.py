"""NLRL through its stages: rollouts aggregated in one context, a choice among n actions, and its distillation."""

from collections.abc import Callable
from typing import Any

import pytest

from schemas.config import Config
from schemas.load import ConfigError
from storage.sql.views import connect
from storage.store import Committed, Store
from tasks.algorithms.nlrl import NLRL
from tasks.export.show import show
from tasks.export.stored import Stored
from tasks.pipeline.checks import check_config
from tasks.pipeline.decision import decide
from tasks.pipeline.plan import plan
from tasks.runtime.stage import StageFailed
from tasks.training import trainer
from tasks.training.records import TrainingError
from tests.support.iterations import Iterate

MakeConfig = Callable[..., Config]


def nlrl(make_config: MakeConfig, **improvement: Any) -> Config:
    section = {"states": 6, "actions": 3, "futures": 2, "verdict": "auto", **improvement}
    free = {"evaluate": {"engine": "rules", "structured": False}}  # so that it can write what can't be read
    return make_config(
        "tests.support.baseline_rules:aggregating", algorithm="nlrl", improvement=section, roles=free
    )


@pytest.mark.slow
def test_the_action_chosen_by_its_aggregated_rollouts_is_distilled_and_a_killed_run_goes_on(
    make_config: MakeConfig, store: Store, iterate: Iterate, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = nlrl(make_config)
    check_config(config, store.root)
    take_step = trainer.take_step

    def dies(*arguments: Any, **more: Any) -> Any:
        raise TrainingError("killed")

    monkeypatch.setattr(trainer, "take_step", dies)
    with pytest.raises(StageFailed, match="killed"):
        iterate(config)
    monkeypatch.setattr(trainer, "take_step", take_step)
    results = iterate(config)
    assert [result.reused for result in results] == [True] * 4 + [False] * 2
    made: dict[str, Committed] = {r.committed.manifest.stage: r.committed for r in results}
    assert tuple(made) == NLRL.stages and [row.stage for row in plan(config)] == list(made)
    assert all(decide(store, config, stage, 0).reuse for stage in made)

    critiques = made["critique"].scan("critiques").collect()
    futures = made["critique"].scan("futures").collect()
    assert critiques.height == 3 * 6 and futures.height == 2 * critiques.height
    assert set(futures["source"]) == {"rollout"} and critiques["optimal"].is_null().all()
    for row in critiques.iter_rows(named=True):
        guess = int(row["action"].strip("[]"))
        if guess % 5 == 0:
            assert (row["status"], row["critique"]) == ("unreadable_evaluation", "")
        else:
            assert row["critique"] == f"{abs(guess - 10)} away over 2 episodes"
    assert set(critiques["status"]) == {"ok", "unreadable_evaluation"}

    chosen = made["refinement"].scan("refinements").collect()
    for row in chosen.iter_rows(named=True):
        tried = critiques.filter(sample_id=row["sample_id"], status="ok").sort("critique_id").to_dicts()
        away = [abs(int(c["action"].strip("[]")) - 10) for c in tried]
        assert row["critique_id"] == tried[away.index(min(away))]["critique_id"]
        assert row["distil"] is row["valid"] and row["kind"] == "chosen"
        assert row["thought"] == "halves are quick"
    stored = Stored(store, connect(store))
    shown = [part.text for part in show(stored, chosen["refinement_id"][0])]
    assert any("Which answer is best?" in text and "Evaluation 1: " in text for text in shown)
    assert not any("optimal." in text for text in shown)
    read = [
        part for part in show(stored, critiques["critique_id"][0]) if part.title.startswith("evaluator reads")
    ]
    assert len(read) == 1 and "changed since" not in read[0].title
    trained = made["policy-distillation"].scan("training_rows").collect()
    assert set(trained["source_id"]) == set(chosen.filter("distil")["refinement_id"])


def test_what_a_choice_among_values_without_verdicts_can_not_use_is_refused(
    make_config: MakeConfig, store: Store
) -> None:
    unfit = {"actions": 1, "action": "replayed", "rounds": 2, "require_gain": True, "verdict": "scored"}
    for field, value in unfit.items():
        with pytest.raises(ConfigError, match=rf"improvement\.{field}: algorithm nlrl"):
            check_config(nlrl(make_config, **{field: value}), store.root)
