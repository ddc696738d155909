"""Which games an evaluation plays, and the baseline beside its success rate."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from schemas.config import Config
from schemas.rows import Split
from storage.store import Store
from tasks.algorithms.nlac import NLAC
from tasks.engines.protocol import Request
from tasks.environments.base import EnvironmentModelFailed, Step, Task
from tasks.environments.frozen_lake import FrozenLake
from tasks.environments.textarena import TextArena
from tasks.measures.baseline import Baseline, baseline
from tasks.pipeline.runner import run_stage
from tasks.runtime.context import stage_context
from tasks.runtime.stage import Inputs
from tests.support.committed import table
from tests.support.iterations import Iterate


@pytest.mark.slow
def test_evaluations_repeat_games_and_random_streams_and_rollouts_do_not(
    make_config: Callable[..., Config], store: Store, iterate: Iterate
) -> None:
    def actions(stage: str, iteration: int, run: str) -> list[tuple[str, str]]:
        made = store.committed(run, stage, iteration)
        assert made is not None
        return made.scan("transitions").select("task_id", "raw_action").collect().rows()

    for run in ("first", "second"):
        config = make_config(run=run, replay={"transitions": 4}, improvement={"states": 2})
        for _ in range(2):
            iterate(config)
    kept = actions("evaluation", 0, "first")
    # The scripted policy is the same in all of them.
    assert kept and kept == actions("evaluation", 1, "first") == actions("evaluation", 0, "second")
    assert actions("rollout", 0, "first") == actions("rollout", 0, "second")
    assert actions("rollout", 0, "first") != actions("rollout", 1, "first")


@pytest.fixture
def measure(make_config: Callable[..., Config], tmp_path: Path) -> Callable[..., Baseline]:
    """The baseline of an environment over its first held-out tasks."""

    def run(environment: dict[str, Any], tasks: int = 10, **changes: Any) -> Baseline:
        config = make_config(environment=environment, **changes)
        ctx = stage_context(config, NLAC, "evaluation", Inputs(), tmp_path / "cache")
        return asyncio.run(baseline(ctx, ctx.environment.tasks("eval")[:tasks]))

    return run


@pytest.mark.slow
def test_random_moves_win_the_number_game_as_often_as_chance_says(measure: Callable[..., Baseline]) -> None:
    # Six distinct of 20 numbers would win 30%; an invalid move ends some episodes early, repeats waste others.
    found = measure({"options": {"game": "GuessTheNumber-v0"}}, 40, rollout={"max_steps": 6})
    assert found.kind == "random" and 0.15 < found.success_rate < 0.33
    one_move = measure({"options": {"game": "GuessTheNumber-v0"}}, 40, rollout={"max_steps": 1})
    assert one_move.success_rate == pytest.approx(1 / 20, abs=0.035)


def test_random_moves_are_legal_ones_where_the_environment_lists_them(
    measure: Callable[..., Baseline],
) -> None:
    lake = {"name": "frozen_lake", "options": {"maps": 4}}
    found = measure(lake, rollout={"max_steps": 12})
    assert found.kind == "random" and 0 < found.success_rate < 1


class Idle(TextArena):
    """A game that is won by the action 'wait', and by nothing else."""

    def __init__(self, no_op: str | None = None) -> None:
        super().__init__(action_regex=r"\w+")  # no format to draw actions from
        if no_op is not None:
            self.no_op = no_op

    async def step(self, action: str) -> Step:
        return Step("over", done=True, success=action == "wait")


def test_doing_nothing_is_the_environments_own_no_op_or_the_empty_action(
    measure: Callable[..., Baseline],
) -> None:
    idle = {"name": "tests.stages.test_evaluation:Idle"}
    assert measure({**idle, "options": {}}) == Baseline(kind="nothing", success_rate=0.0)
    assert measure({**idle, "options": {"no_op": "wait"}}) == Baseline(kind="nothing", success_rate=1.0)


class Silent(Idle):
    """A game in which somebody should speak, and can't."""

    async def step(self, action: str) -> Step:
        raise EnvironmentModelFailed("the line is dead")


def test_an_evaluation_stands_without_a_baseline_that_could_not_be_played(
    measure: Callable[..., Baseline | None], tmp_path: Path
) -> None:
    assert measure({"name": "tests.stages.test_evaluation:Silent", "options": {}}) is None
    assert not (tmp_path / "cache" / "baselines").exists(), "the next evaluation tries again"


def test_a_run_measures_it_once_and_can_leave_it_out(
    make_config: Callable[..., Config], iterate: Iterate, store: Store
) -> None:
    config = make_config(algorithm="react")  # evaluates, and nothing else
    rates = []
    for _ in range(2):
        made = next(r.committed for r in iterate(config) if r.committed.manifest.stage == "evaluation")
        rates.append(made.scan("evaluations").collect()["baseline_success_rate"].item())
        kept = list((store.root / ".cache" / "baselines").iterdir())
        assert len(kept) == 1
        kept[0].write_text('{"kind": "random", "success_rate": 0.125}')
    assert rates[1] == 0.125, "the second evaluation read what the first had kept"
    without = iterate(make_config(algorithm="react", evaluation={"baseline": False}))[-1].committed
    row = without.scan("evaluations").collect().row(0, named=True)
    assert row["baseline"] is None and row["baseline_success_rate"] is None


class Lending(FrozenLake):
    """A lake without validation maps."""

    def tasks(self, split: Split) -> Sequence[Task]:
        return () if split == "validation" else super().tasks(split)


def goes_down(request: Request) -> str:
    """The scripted player of the lake."""
    return "Thought: south\nAction: down"


def test_lent_tasks_are_validated_on_and_never_rolled_out(
    make_config: Callable[..., Config], store: Store
) -> None:
    def compute(stage: str, algorithm: str) -> None:
        config = make_config(
            "tests.stages.test_evaluation:goes_down",
            algorithm=algorithm,
            environment={"name": "tests.stages.test_evaluation:Lending", "options": {"maps": 4}},
            rollout={"episodes": 39, "max_steps": 1},
            evaluation={"episodes": 5, "validation_episodes": 6, "repeats": 2},
        )
        asyncio.run(run_stage(store, config, stage, 0))

    compute("rollout", "nlac")
    compute("evaluation", "react")  # of the untrained policy
    train = {task.task_id for task in Lending(maps=4).tasks("train")}
    rolled_out = set(table(store, "rollout", "episodes")["task_id"])
    assert (len(train), len(rolled_out)) == (43, 39)
    for name in ("episodes", "transitions"):
        played = table(store, "evaluation", name)
        assert dict(played["split"].value_counts().iter_rows()) == {"eval": 10, "validation": 12}
        assert set(played.filter(split="validation")["task_id"]) == train - rolled_out
    reported, chosen_by = table(store, "evaluation", "evaluations").iter_rows(named=True)
    assert (reported["split"], reported["episodes"], reported["baseline"]) == ("eval", 10, "random")
    assert (chosen_by["split"], chosen_by["episodes"], chosen_by["baseline"]) == ("validation", 12, None)


def test_validation_episodes_are_as_many_as_early_stopping_needs(make_config: Callable[..., Config]) -> None:
    def counted(**section: int) -> int:
        return make_config(evaluation=section).evaluation.validation_count

    assert (counted(), counted(episodes=5, patience=2), counted(validation_episodes=4, patience=2)) == (
        0,
        5,
        4,
    )


def test_a_new_patience_reuses_an_evaluation_and_the_first_one_does_not(
    make_config: Callable[..., Config], store: Store
) -> None:
    def evaluated(**section: int) -> str:
        config = make_config(algorithm="react", evaluation={"baseline": False, **section})
        return asyncio.run(
            run_stage(store, config, "evaluation", 0, frozen=False)
        ).committed.manifest.fingerprint

    assert evaluated(patience=1) == evaluated(patience=3) == evaluated(validation_episodes=3) != evaluated()
    assert table(store, "evaluation", "evaluations")["split"].to_list() == ["eval"]
