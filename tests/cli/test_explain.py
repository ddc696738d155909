"""`nlac explain`: why a stage would be reused or computed."""

from pathlib import Path

from schemas.config import Config
from schemas.load import dump_config
from storage.store import Store
from tasks.pipeline.decision import resolve_inputs
from tasks.pipeline.fingerprint_inputs import collect_fingerprint_inputs
from tasks.pipeline.iterations import begin_iteration
from tasks.pipeline.registry import STAGES
from tests.support.cli import nlac
from tests.support.committed import commit_episode, commit_rows


def committed_rollout(store: Store, config: Config) -> None:
    """A rollout whose fingerprint_inputs are those of this very program, without having played it."""
    begin_iteration(store, config, 0)
    stage, inputs = STAGES["rollout"], resolve_inputs(store, config, "rollout", 0)
    fingerprint_inputs = collect_fingerprint_inputs(stage, config, 0, inputs)
    commit_rows(
        store,
        "rollout",
        0,
        {"episodes": [], "transitions": []},
        run=config.run,
        fingerprint_inputs=fingerprint_inputs,
    )


def test_explain_says_reuse_or_names_the_field_that_changed(
    store: Store, scripted: Config, tmp_path: Path
) -> None:
    committed_rollout(store, scripted)
    same = nlac(store, "explain", "rollout", "0", "--run", "trial")
    assert same.exit_code == 0, same.stderr
    assert "rollout of iteration 0, run 'trial': reuse" in same.stdout

    changed = tmp_path / "changed.yaml"
    longer = scripted.model_copy(update={"rollout": scripted.rollout.model_copy(update={"max_steps": 99})})
    changed.write_text(dump_config(longer))
    result = nlac(store, "explain", "rollout", "0", "--config", str(changed))
    assert "recompute" in result.stdout
    assert "rollout.max_steps" in result.stdout and "99" in result.stdout
    auto = scripted.model_copy(update={"model": scripted.model.model_copy(update={"dtype": "auto"})})
    changed.write_text(dump_config(auto))
    kept = nlac(store, "explain", "rollout", "0", "--config", str(changed))
    assert "run 'trial': reuse" in kept.stdout, "with auto, the type that the run has"


def test_explain_of_a_stage_whose_input_is_missing_says_which(store: Store) -> None:
    result = nlac(store, "explain", "bellman-targets", "0")
    assert result.exit_code == 1
    assert "rollout" in result.stderr
    unknown = nlac(store, "explain", "critic", "0")
    assert unknown.exit_code == 2
    assert "critic-sft" in unknown.stderr


def test_the_remedy_of_an_explanation_names_the_run(store: Store) -> None:
    commit_episode(store)
    result = nlac(store, "explain", "critic-sft", "0", "--run", "trial")
    assert result.exit_code == 1
    assert "prefect deployment run nlac/cot-correction -p iteration=0 -p run=trial" in result.stderr


def test_explain_of_an_unknown_run_leaves_nothing_and_is_refused(store: Store) -> None:
    result = nlac(store, "explain", "rollout", "0", "--run", "nope")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"no run 'nope' under {store.root}; begin one with `nlac iterate`\n"
    assert not store.root.exists()
    commit_episode(store)
    near = nlac(store, "explain", "rollout", "0", "--run", "tria")
    assert near.exit_code == 2
    assert near.stderr == f"no run 'tria' under {store.root}, did you mean 'trial'? (there are: trial)\n"
