"""`nlac env`, as a user calls it."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from flows.cli.main import app
from schemas.config import EnvironmentSection
from schemas.load import PROJECT_ROOT
from tasks.environments import UnusableEnvironment, make_environment
from tasks.environments.base import ActionFormat, Task
from tasks.environments.frozen_lake import FrozenLake
from tasks.environments.registry import BUILTIN, Builtin

FOUR_MAPS = "43 train tasks, 4 validation tasks, 4 eval tasks"


def env(*words: str) -> Result:
    return CliRunner().invoke(app, ["env", *words])


def test_the_list_says_what_each_is_and_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = Builtin(
        "tasks.environments.math:Math", "a game", "a board", "no_such_package", "pip install board"
    )
    monkeypatch.setitem(BUILTIN, "ludo", lacking)
    said = env("list").stdout
    assert all(f"{name} " in said and builtin.description in said for name, builtin in BUILTIN.items())
    assert (
        "needs a board" in said
        and "not usable: needs the package no_such_package, which is not installed" in said
    )
    with pytest.raises(
        UnusableEnvironment, match=r"ludo needs the package no_such_package.* pip install board"
    ):
        make_environment(EnvironmentSection(name="ludo", options={}))


def test_a_sound_environment_ends_with_code_0() -> None:
    said = env("validate", "frozen_lake", "--option", "maps=4", "--option", "slippery=true")
    assert (said.exit_code, said.stdout) == (0, f"frozen_lake: no fault ({FOUR_MAPS})\n")


def test_options_come_from_a_configuration_and_single_ones_replace_them() -> None:
    shipped = str(PROJECT_ROOT / "configs" / "proofs" / "frozen_lake.yaml")
    said = env("validate", "frozen_lake", "--config", shipped, "--option", "maps=4")
    assert (said.exit_code, said.stdout) == (0, f"frozen_lake: no fault ({FOUR_MAPS})\n")
    other = env("validate", "math", "--config", shipped)
    assert other.exit_code == 2 and "environment.name is frozen_lake, not math" in other.stderr


class Broken(FrozenLake):
    """The same tasks in all splits, an action that its own format does not allow, and no goal that can be reached."""

    name = "broken"
    action_format = ActionFormat("north|south", "north or south")

    def __init__(self) -> None:
        super().__init__(maps=1)

    def tasks(self, split: str) -> list[Task]:  # type: ignore[override]
        return list(super().tasks("eval"))

    def validate(self) -> list[str]:
        return ["broken: as it says"]


def test_every_fault_is_printed_and_the_code_is_1() -> None:
    said = env("validate", "tests.cli.test_environment_commands:Broken")
    assert said.exit_code == 1
    for fault in (
        "broken: tasks('train') gives tasks of another split",
        "broken: a task is in both splits train and validation: ",
        "broken: a task is in both splits train and eval: ",
        "broken: a task is in both splits validation and eval: ",
        "broken: legal_actions lists '",
        "broken: as it says",
        " faults\n",
    ):
        assert fault in said.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nope",), "environment.name: 'nope' is unknown"),
        (("json:loads",), "environment.options: json:loads does not take"),
        (("json:JSONDecoder",), "has no action_format"),
        (("frozen_lake", "--option", "maps"), "--option maps: write KEY=VALUE"),
        (("frozen_lake", "--option", "maps=["), "--option maps=[: the value is not YAML"),
        (("frozen_lake", "--option", "colour=red"), "colour"),
        (("frozen_lake", "--config", "/no/such.yaml"), "no such configuration file"),
    ],
)
def test_what_can_not_be_validated_says_why(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    found = env("validate", *words)
    assert found.exit_code in (1, 2) and said in found.stderr
