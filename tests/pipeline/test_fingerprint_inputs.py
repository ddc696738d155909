"""What determines a stage's output is compared by name, and its output is what it declares."""

from pathlib import Path

import pytest

from schemas.manifest import FingerprintInputs, OrchestrationIds
from storage.store import Store
from tasks.pipeline.commit import StageRun, commit_output
from tasks.pipeline.fingerprint_inputs import differences, fingerprint_of
from tasks.pipeline.registry import STAGES
from tasks.runtime.stage import Output

BEFORE = FingerprintInputs(
    stage="critique", code_version=1, run="trial", iteration=0, config={"improvement": {"states": 4}},
    prompts={"evaluate": "a" * 20}, models={}, inputs={"rollout@00000.transitions": "b" * 20},
)  # fmt: skip


def test_each_thing_that_changed_is_named_with_what_it_was_and_is() -> None:
    changes = {
        "code_version": 2,
        "config": {"improvement": {"states": 5}},
        "prompts": {"evaluate": "c" * 20},
        "models": {"policy": "d" * 20},
        "inputs": {},
    }
    now = BEFORE.model_copy(update=changes)
    assert list(differences(BEFORE, now)) == [
        "code: version 1 -> 2 of the stage",
        "config: improvement.states: 4 -> 5",
        f"prompt: evaluate: {'a' * 12} -> {'c' * 12}",
        f"model: policy: none -> {'d' * 12}",
        f"input: rollout@00000.transitions: {'b' * 12} -> none",
    ]
    assert fingerprint_of(now) != fingerprint_of(BEFORE)
    assert list(differences(BEFORE, BEFORE.model_copy())) == []


def test_a_stage_that_gives_other_tables_than_it_declares_is_refused(tmp_path: Path) -> None:
    run = StageRun(BEFORE, fingerprint_of(BEFORE), 1, OrchestrationIds())
    made = Output(tables={"episodes": []}, rows_in=0)
    with pytest.raises(ValueError, match=r"critique gave tables \['episodes'\], it declares others"):
        commit_output(Store(tmp_path), run, STAGES["critique"], made, tmp_path, 0)
