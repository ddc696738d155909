"""Whole iterations on the environments with one answer: shipped configurations, scripted roles."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from schemas.config import Config
from schemas.load import PROJECT_ROOT, load_config
from storage.store import Committed, Store
from tasks.pipeline.checks import check_config
from tasks.pipeline.runner import run_stage
from tests.support.iterations import Iterate

RULES = "tests.support.answer_rules:sums"


def play(
    iterate: Iterate, store: Store, config: Config
) -> tuple[dict[str, Committed], pl.DataFrame, pl.DataFrame]:
    """An iteration's stages, its evaluation, and the transitions of its rollout."""
    check_config(config, store.root)
    made = {r.committed.manifest.stage: r.committed for r in iterate(config)}
    return (
        made,
        made["evaluation"].scan("evaluations").collect(),
        made["rollout"].scan("transitions").collect(),
    )


def write_sums(folder: Path) -> str:
    """A file of forty problems."""
    lines = [json.dumps({"problem": f"What is {n} + {n + 9}?", "answer": str(2 * n + 9)}) for n in range(40)]
    (folder / "sums.jsonl").write_text("\n".join(lines))
    return str(folder / "sums.jsonl")


def test_an_iteration_of_mathematics_distils_right_answers(
    make_config: Callable[..., Config], iterate: Iterate, store: Store, tmp_path: Path
) -> None:
    pytest.importorskip("math_verify", reason="math-verify is not installed: pip install -e '.[math]'")
    section = load_config(PROJECT_ROOT / "configs" / "examples" / "math_smollm2.yaml").environment
    environment = section.model_copy(update={"options": {"problems": write_sums(tmp_path)}})
    config = make_config(
        RULES, environment=environment.model_dump(), rollout={"episodes": 12}, evaluation={"repeats": 4}
    )
    made, evaluated, steps = play(iterate, store, config)
    assert len(made) == 8
    assert steps["done"].all() and set(steps["step"]) == {0}
    assert set(steps["reward"]) == {0.0, 1.0} and (steps["success"] == (steps["reward"] == 1)).all()
    row = evaluated.row(0, named=True)
    assert row["episodes"] == 12 and len(row["pass_hat"]) == 4
    assert row["pass_hat"][0] == pytest.approx(row["success_rate"]) and row["pass_hat"] == sorted(
        row["pass_hat"], reverse=True
    )
    assert (row["baseline"], row["baseline_success_rate"]) == ("nothing", 0.0)
    refined = made["refinement"].scan("refinements").filter(pl.col("distil")).collect()
    assert refined.height and refined["valid"].all()


def test_an_iteration_of_a_generated_task_takes_the_packages_score_as_reward(
    make_config: Callable[..., Config], iterate: Iterate, store: Store
) -> None:
    pytest.importorskip(
        "reasoning_gym", reason="reasoning-gym is not installed: pip install -e '.[reasoning-gym]'"
    )
    section = load_config(PROJECT_ROOT / "configs" / "examples" / "reasoning_gym_smollm2.yaml").environment
    short = {"min_terms": 2, "max_terms": 2, "min_digits": 3, "max_digits": 3}
    environment = section.model_copy(update={"options": {"task": "chain_sum", "config": short}})
    config = make_config(RULES, environment=environment.model_dump(), rollout={"episodes": 12})
    made, evaluated, steps = play(iterate, store, config)
    assert len(made) == 8
    assert {0.0, 1.0} <= set(steps["reward"]) and (steps["reward"] == steps["game_reward"]).all()
    assert evaluated["environment"].to_list() == ["reasoning_gym/chain_sum"]


@pytest.mark.slow
def test_an_answer_that_hung_the_verifier_is_a_row_with_a_status_and_never_replayed(
    make_config: Callable[..., Config], store: Store, tmp_path: Path
) -> None:
    pytest.importorskip("math_verify", reason="math-verify is not installed: pip install -e '.[math]'")
    options = {"problems": write_sums(tmp_path), "seconds": 0.3}
    config = make_config(
        "tests.support.answer_rules:hangs",
        environment={"name": "math", "options": options},
        rollout={"episodes": 8},
        replay={"transitions": 60},
    )
    played, drawn = (
        asyncio.run(run_stage(store, config, stage, 0)) for stage in ("rollout", "bellman-targets")
    )
    steps = played.committed.scan("transitions").collect()
    hung = steps.filter(status="verifier_timeout")
    assert 0 < hung.height < steps.height
    assert set(hung["reward"]) == {0.0} and set(hung["error"]) == {"not done after 0.3 s of CPU time"}
    assert not hung["success"].any() and hung["done"].all()
    assert set(played.committed.scan("episodes").collect()["status"]) == {"ok"}
    replayed = drawn.committed.scan("replay_samples").collect()["transition_id"]
    assert not set(replayed) & set(hung["transition_id"]) and len(set(replayed)) == steps.height - hung.height
