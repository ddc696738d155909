"""reasoning-gym's generated tasks, by name, scored by the package."""

import asyncio

import pytest

from schemas.config import EnvironmentSection
from tasks.environments import UnusableEnvironment, make_environment
from tasks.environments.base import EpisodeFailed, Step, Task
from tasks.environments.checks import faults_of

pytest.importorskip(
    "reasoning_gym", reason="reasoning-gym is not installed: pip install -e '.[reasoning-gym]'"
)

from tasks.environments.reasoning_gym import ReasoningGym
from tasks.environments.reasoning_gym.score import make_question


def answer(environment: ReasoningGym, task: Task, text: str) -> tuple[str, Step]:
    async def run() -> tuple[str, Step]:
        return await environment.reset(task), await environment.step(text)

    return asyncio.run(run())


def test_the_stated_answer_is_a_success_and_another_is_not() -> None:
    environment = ReasoningGym("gcd")
    task = environment.tasks("train")[3]
    _, entry = make_question("gcd", {}, task.seed)
    question, right = answer(environment, task, entry["answer"])
    assert question == entry["question"]
    assert (right.reward, right.success, right.done, right.valid) == (1.0, True, True, True)
    _, wrong = answer(environment, task, "-3")
    assert (wrong.reward, wrong.success, wrong.done, wrong.valid) == (0.0, False, True, True)
    assert not answer(environment, task, " ")[1].valid


def test_the_packages_own_partial_score_is_the_reward() -> None:
    environment = ReasoningGym("gcd", success_at=0.01)
    task = environment.tasks("eval")[0]
    dataset, entry = make_question("gcd", {}, task.seed)
    said = f"it is {entry['answer']}, I think"
    _, step = answer(environment, task, said)
    assert 0 < step.reward < 1 and step.success
    assert step.reward == dataset.score_answer(said, entry)


def test_an_answer_that_the_scorer_can_not_read_is_an_invalid_action() -> None:
    environment = ReasoningGym("prime_factorization")
    _, step = answer(environment, environment.tasks("eval")[0], "zxcv")
    assert (step.done, step.valid, step.reward, step.status) == (True, False, 0.0, "ok")
    assert "can't be read (ValueError" in step.observation


@pytest.mark.usefixtures("few_questions")
def test_a_scorer_that_takes_anything_for_right_is_a_fault() -> None:
    faults = faults_of(ReasoningGym("game_of_life_halting"))
    assert any("takes 'no answer' for a success" in fault for fault in faults)


@pytest.mark.slow
def test_a_question_that_takes_too_long_is_a_failed_episode_and_a_fault() -> None:
    hurried = ReasoningGym("gcd", seconds=1e-6)
    with pytest.raises(EpisodeFailed, match=r"score:question.* given 1e-06 s of CPU time"):
        asyncio.run(hurried.reset(hurried.tasks("eval")[0]))
    assert len(faults_of(hurried)) == 1


def test_a_seed_makes_a_question_and_the_configuration_shapes_it() -> None:
    short = ReasoningGym("chain_sum", {"min_terms": 2, "max_terms": 2, "min_digits": 4, "max_digits": 4})
    tasks = short.tasks("train")
    first = [answer(short, task, "1")[0] for task in tasks[:5]]
    assert first == [answer(short, task, "1")[0] for task in tasks[:5]] and len(set(first)) == 5
    assert all(text.count("+") + text.count(" - ") == 1 for text in first)


@pytest.fixture
def few_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each split, where a fault of one is as good as of fifty: each takes four processes."""
    monkeypatch.setattr("tasks.environments.reasoning_gym.CHECKED", 12)


@pytest.mark.usefixtures("few_questions")
@pytest.mark.parametrize("task", ["gcd", "chain_sum", "n_queens", "propositional_logic", "caesar_cipher"])
def test_it_validates_without_a_model(task: str) -> None:
    # Questions that no two splits share: few queens removed, many digits.
    configs = {"chain_sum": {"min_digits": 3, "max_digits": 4}, "n_queens": {"max_remove": 6}}
    assert faults_of(ReasoningGym(task, configs.get(task))) == []


def test_an_answer_in_several_lines_is_allowed_where_the_stated_ones_are() -> None:
    import re

    board = ReasoningGym("n_queens").action_format.regex
    assert re.fullmatch(board, "Q _ _\n_ _ Q") and not re.fullmatch(
        ReasoningGym("gcd").action_format.regex, "1\n2"
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"task": "no_such_task"}, "has no task 'no_such_task'"),
        ({"task": "gcd", "config": {"colour": 1}}, "config: task gcd refuses"),
        ({"task": "gcd", "config": {"min_numbers": 1}}, "min_numbers must be at least 2"),
        ({"task": "gcd", "config": {"seed": 1}}, "config: seed is set by each task of this program"),
    ],
)
def test_what_the_package_refuses_is_named(options: dict[str, object], said: str) -> None:
    with pytest.raises(UnusableEnvironment, match=said):
        make_environment(EnvironmentSection(name="reasoning_gym", options=options))
