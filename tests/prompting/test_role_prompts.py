"""What each role's prompt shows: the task with its tools, the whole history, and a verdict in the right order."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prompts import PromptError, render
from schemas.config import Config
from schemas.load import PROJECT_ROOT
from storage.history import State, Turn
from tasks.environments.frozen_lake import FrozenLake
from tasks.prompting.rendering import PromptRenderer
from tasks.prompting.role_prompts import Attempt, BackupInputs, backup_prompt, evaluate_prompt, predict_prompt
from tasks.prompting.truncation import Prompt
from tests.support.iterations import ROLES
from tests.support.tool_game import GUESS, ToolGame

STATE = State((Turn("Which number is it?", "Action: 5"), Turn("higher", "Action: 9")), "lower")


@pytest.fixture
def prompts(make_config: Callable[..., Config]) -> Callable[..., PromptRenderer]:
    def make(environment: Any = None, **roles: Any) -> PromptRenderer:
        sections = {role: {"engine": "rules", **roles.get(role, {})} for role in ROLES}
        return PromptRenderer(make_config(roles=sections), environment or ToolGame())

    return make


def foreseeing(prompts: PromptRenderer) -> list[Prompt]:
    """The prompts of successor, backup and evaluator."""
    read = BackupInputs(STATE, "Action: 7", "higher", 0.0, terminal=True)
    return [
        predict_prompt(prompts, STATE, "Action: 7"),
        backup_prompt(prompts, read),
        evaluate_prompt(prompts, STATE, "Action: 7", ["it is found"]),
    ]


@pytest.mark.parametrize("calls", ["text", "native"])
def test_successor_backup_and_evaluator_know_the_task_and_its_tools(
    prompts: Callable[..., PromptRenderer], calls: str
) -> None:
    made = prompts(policy={"tool_calls": calls, "structured": False})
    for prompt in foreseeing(made):
        system = prompt.messages[0]["content"]
        assert "\nFind the number.\n\n# Tools\n" in system and GUESS["function"]["description"] in system


def test_the_prompts_of_the_lakes_word_model_hold_no_instructions(
    prompts: Callable[..., PromptRenderer],
) -> None:
    state = State((), "agent r0c0 goal r3c3 / . . / none none none none none none")
    predict = predict_prompt(prompts(FrozenLake()), state, "Action: right")
    shown = [message["content"] for message in predict.messages]
    assert shown == ["", f"foresee {state.observation} do right"]


def test_the_choice_reads_the_turns_before_it(prompts: Callable[..., PromptRenderer]) -> None:
    attempts = [Attempt("Action: 7", False, "too low"), Attempt("Action: 8", False, "unsure")]
    shown = prompts().prompt("refine", "choose", state=STATE, attempts=attempts).messages[-1]["content"]
    begun = "Environment: Which number is it?\nAgent: Action: 5\nEnvironment: higher\nAgent: Action: 9\n"
    assert f"{begun}Environment: lower\n\nAnswer 1:\nAction: 7\n" in shown


@pytest.mark.parametrize("environment", [None, "tau_bench"])
def test_an_evaluator_that_thinks_is_asked_for_its_reason_first(
    prompts: Callable[..., PromptRenderer], environment: str | None
) -> None:
    other = ToolGame()
    if environment:
        folder = PROJECT_ROOT / "tasks" / "environments" / environment / "templates"
        other.templates = {"evaluate": folder / "evaluate.j2"}
    thinking = {"thinking": True, "structured": False}
    for section, order in (({}, ["Optimal:", "Reason:"]), (thinking, ["Reason:", "Optimal:"])):
        system = foreseeing(prompts(other, evaluate=section))[2].messages[0]["content"]
        lines = [line.split()[0] for line in system.splitlines() if line.startswith(("Optimal:", "Reason:"))]
        assert lines == order


def test_an_evaluator_is_told_a_verdict_to_explain(prompts: Callable[..., PromptRenderer]) -> None:
    for verdict, told in ((True, "Optimal: yes."), (False, "Optimal: no."), (None, None)):
        prompt = evaluate_prompt(prompts(), STATE, "Action: 7", ["it is found"], verdict=verdict)
        shown = prompt.messages[-1]["content"]
        assert ("You have found" in shown) is (told is not None) and (told or "") in shown


def test_a_template_runs_no_code(tmp_path: Path) -> None:
    hostile = tmp_path / "evaluate.j2"
    ran = tmp_path / "ran"
    for code in ("cycler.__init__.__globals__.os.mkdir(path)", "''.__class__.__mro__[1].__subclasses__()"):
        hostile.write_text(f"{{% block user %}}{{{{ {code} }}}}{{% endblock %}}")
        with pytest.raises(PromptError, match="unsafe"):
            render("evaluate", ["user"], {"path": str(ran)}, {"evaluate": hostile})
    assert not ran.exists()
