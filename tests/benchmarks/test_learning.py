"""Half of the proof of learning, and a control that must not pass it: the same runs as `make learn` makes."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.checks import Check, check, finish
from benchmarks.learning.ablations import VARIANTS
from benchmarks.learning.baselines import baseline_figures, baseline_jobs
from benchmarks.learning.chain import PATH, Arrivals, chain_arrivals
from benchmarks.learning.lake_run import CONFIG, Measured, configure
from benchmarks.learning.learning_curve import (
    ITERATIONS,
    control_checks,
    job,
    proof_checks,
    run_chain,
    run_job,
)
from schemas.load import load_config
from storage.store import Store
from tasks.environments.frozen_lake.word_model import make_word_model
from tasks.pipeline.iterations import run_stages
from tests.support.processor import computes_long

HALF = 12  # of the proof's 18 iterations
FIRST = 2  # of the chain's 8


def half_checks(measured: list[Measured]) -> list[Check]:
    """The bars of half a run, on its last iteration."""
    return [
        check("half_sampled_success", measured[-1].sampled_success, ">=", 0.70),
        check("half_rank_qstar", measured[-1].rank or 0.0, ">=", 0.88),
    ]


@pytest.mark.long
@computes_long
@pytest.mark.timeout(2400)
def test_half_a_run_learns_what_shuffled_labels_do_not_teach(tmp_path: Path) -> None:
    jobs = [
        job("smoke", 0, HALF, tmp_path),
        # Fewer states to improve: a critic that has learned nothing has every action refined in every round.
        job("shuffled", 0, HALF, tmp_path, backup={"shuffle_labels": True}, improvement={"states": 256}),
    ]
    with ThreadPoolExecutor(len(jobs)) as pool:
        learned, control = pool.map(run_job, jobs)
    assert [c for c in half_checks(learned) if not c.ok] == []
    assert not any(c.ok for c in half_checks(control))


@pytest.mark.slow
def test_the_outcome_travels_one_step_back_in_each_of_the_first_iterations(tmp_path: Path) -> None:
    model = make_word_model(tmp_path / "model", 0)
    shown = asyncio.run(chain_arrivals(Store(tmp_path / "data"), load_config(CONFIG), model, FIRST))
    assert shown.iterations == [*range(1, FIRST + 1), *[0] * (len(PATH) - FIRST)]
    assert len(shown.losses) == FIRST and max(shown.losses) < 0.01


@pytest.mark.long
@pytest.mark.timeout(900)
@computes_long
def test_the_outcome_travels_one_step_back_an_iteration(tmp_path: Path) -> None:
    shown = run_chain(tmp_path)
    assert shown.iterations == [1, 2, 3, 4, 5, 6, 7, 8]
    assert len(shown.losses) == 8 and max(shown.losses) < 0.01


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "kind"), [("priorities", "nll"), ("priorities-kl", "kl_bound")])
def test_the_ablation_of_priorities_is_told_by_their_kind(variant: str, kind: str, tmp_path: Path) -> None:
    changes = VARIANTS[variant]
    sizes = {
        "rollout": {"first_episodes": 8},
        "replay": {**changes["replay"], "transitions": 40},
        "critic": {"epochs": 1},
    }
    one = job("trial", 0, 1, tmp_path, **{**changes, **sizes})
    config = configure(one, make_word_model(tmp_path / "model", 0))
    store = Store(tmp_path / "data")
    made = asyncio.run(
        run_stages(store, config, ["rollout", "bellman-targets", "cot-correction", "critic-sft"])
    )
    rows = made.scan("priorities").collect()
    assert set(rows["priority_kind"]) == {kind}
    if kind == "kl_bound":
        assert set(rows["backup_draws"].drop_nulls()) & {2, 3, 4}, "usable draws of (a', d')"


def _run(sampled: float, **figures: float) -> list[Measured]:
    usual = {"optimal_states": 1.0, "rank": 1.0, "verdict_auroc": 1.0, "malformed": 0.0}
    return [Measured(i, 100 * (i + 1), sampled_success=sampled, **{**usual, **figures}) for i in range(4)]


def test_every_bar_can_be_missed() -> None:
    chain = Arrivals([1, 2, 3], [0.006, 0.002, 0.001])
    good, baseline = [_run(0.9)] * 3, [_run(0.5)] * 3
    assert all(c.ok for c in proof_checks(good, baseline, chain))
    for figures, missed in (
        ({"sampled": 0.77}, {"sampled_success_min"}),
        ({"sampled": 0.9, "rank": 0.89}, {"rank_qstar_min"}),
        ({"sampled": 0.9, "optimal_states": 0.90}, {"optimal_states_min"}),
        ({"sampled": 0.9, "verdict_auroc": float("nan")}, {"verdict_auroc_min", "verdict_auroc_median"}),
        ({"sampled": 0.9, "malformed": 0.06}, {"malformed_max"}),
    ):
        checks = proof_checks([_run(**figures), *good[1:]], baseline, chain)
        assert {c.name for c in checks if not c.ok} <= missed and any(not c.ok for c in checks)
    for spoilt, missed in (
        (Arrivals([1, 2, 2], [0.0]), "chain_exact"),
        (Arrivals([1], [0.02]), "chain_fitted"),
    ):
        assert [c.name for c in proof_checks(good, baseline, spoilt) if not c.ok] == [missed]
    weak = [c.name for c in proof_checks(good, [_run(0.4)] * 3, chain) if not c.ok]
    assert weak == ["rft_healthy"]
    close = [c.name for c in proof_checks(good, [_run(0.86)] * 3, chain) if not c.ok]
    assert close == ["margin_over_rft_median", "margin_over_rft_min"]
    for figure, value in (
        ("sampled_success", 0.8), ("optimal_states", 0.92), ("rank", 0.91), ("verdict_auroc", 0.91), ("malformed", 0.03)
    ):  # fmt: skip
        weaker = _run(
            **{"sampled": 0.9, figure: value} if figure != "sampled_success" else {"sampled": value}
        )
        checks = proof_checks([weaker, weaker, good[0]], [_run(0.5)] * 3, chain)
        name = {"rank": "rank_qstar"}.get(figure, figure)
        assert [c.name for c in checks if not c.ok] == [f"{name}_median"]


def test_the_median_of_each_control_is_held_to_its_bars() -> None:
    chance = _run(0.1, rank=0.5)
    assert all(c.ok for c in control_checks({"shuffled": [chance] * 3, "frozen_target": [chance] * 3}, True))
    for learned, missed in ((_run(0.1, rank=0.66), "rank"), (_run(0.16, rank=0.5), "success")):
        once = control_checks({"shuffled": [chance] * 3, "frozen_target": [learned, chance, chance]}, True)
        assert all(c.ok for c in once)
        twice = control_checks({"shuffled": [chance] * 3, "frozen_target": [learned, chance, learned]}, True)
        assert [c.name for c in twice if not c.ok] == [f"control_frozen_target_{missed}"]
    [twins] = [c for c in control_checks({}, False) if not c.ok]
    assert twins.name == "same_seed_identical"


def test_a_missed_bar_ends_the_command_and_stays_in_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("benchmarks.checks.OUT", tmp_path)
    finish("learning_curve", "Controls", [check("same_seed_identical", 1, "==", 1)])
    with pytest.raises(SystemExit, match="bars missed: chain_exact"):
        missed = [check("chain_exact", 0, "==", 1), check("rft_healthy", 0.5, ">=", 0.45)]
        finish("learning_curve", "FrozenLake", missed)
    finish("learning_curve", "Controls", [check("same_seed_identical", 1, "==", 1)])
    written = json.loads((tmp_path / "learning_curve.json").read_text())
    assert {c["name"]: c["ok"] for c in written["checks"]} == {
        "chain_exact": False, "rft_healthy": True, "same_seed_identical": True,
    }  # fmt: skip
    assert written["measured"].keys() == {c["name"] for c in written["checks"]}


def test_baselines_have_the_settings_of_nlac_but_for_what_they_are(tmp_path: Path) -> None:
    own = configure(job("nlac-0", 0), tmp_path).model_dump()
    for algorithm, one in baseline_jobs().items():
        assert one.iterations == (1 if algorithm == "react" else ITERATIONS)
        config = configure(one, tmp_path).model_dump()
        differing = {name for name in own if config[name] != own[name]} - {"run"}
        assert config["algorithm"] == algorithm
        assert differing - {"algorithm"} == {
            "nlql": set(), "self_distillation": {"improvement", "policy"}, "react": {"improvement", "evaluation"},
        }[algorithm]  # fmt: skip


def test_a_baseline_is_compared_where_it_has_used_as_many_steps_simulated_ones_counted() -> None:
    run = [Measured(i, 100 * (i + 1), 0.1 * i, 0.5, simulated_steps=60 * (i + 1)) for i in range(6)]
    figures = baseline_figures(run, 250)
    assert (figures["environment_steps"], figures["simulated_steps"]) == (600, 360)
    assert figures["sampled_success"] == pytest.approx(0.4)  # of iterations 3, 4 and 5
    assert figures["iterations_then"] == 3
    assert figures["sampled_success_then"] == pytest.approx(0.1)  # of iterations 0, 1 and 2
