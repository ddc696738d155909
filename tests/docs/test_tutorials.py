"""docs/tutorials/: their commands do what the pages say, one after the other in one folder.

`nlac iterate` runs its iteration in this process, without Prefect, and where a page means SmolLM2 with a tiny model and
rules; everything else does what it says.
"""

import asyncio
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from flows.cli.main import app
from schemas.config import Config
from schemas.load import PROJECT_ROOT, load_config
from storage.sql.views import connect
from storage.store import Store
from tasks.imports import ALLOW_IMPORT, allow_imports
from tasks.pipeline.checks import check_config
from tasks.pipeline.iterations import run_iteration
from tasks.runtime.stage import StageInterrupted
from tests.support.logs import conversation, write_json

PAGES = PROJECT_ROOT / "docs" / "tutorials"


class Reader:
    """Somebody who follows a page in a folder.

    Args:
        folder: where they stand.
        monkeypatch: takes back what they set.

    Attributes:
        means: what they put for words in capitals.
        small: what an iteration is run with in place of the page's configuration, which is checked before.
        store: the data root that their commands write to.
        said: what each `nlac` command but `nlac iterate` said, by its line.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.store = folder, Store(folder / "data")
        self.means: dict[str, str] = {}
        self.small: Callable[[Config], Config] = lambda config: config
        self.said: dict[str, Result] = {}
        self._patched = monkeypatch

    def follow(self, page: str, until: str | None = None) -> None:
        """Run every command of a page, or of its part before a heading. A line that ends with `# fails` has to."""
        text = (PAGES / page).read_text(encoding="utf-8")
        if until is not None:
            text, found, _ = text.partition(f"\n{until}\n")
            assert found, f"{page} has no heading {until}"
        for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
            for line in block.splitlines() if not language else ():
                self._run(line)

    def _run(self, line: str) -> None:
        command, _, note = line.partition("   # ")
        words = [self.means.get(word, word) for word in shlex.split(command)]
        if words[0] == "PYTHONPATH=.":
            self._patched.syspath_prepend(str(self.folder))
            words = words[1:]
        if words[:2] == ["nlac", "iterate"]:
            if "--allow-import" in words:
                allow_imports([words[words.index("--allow-import") + 1]])
            self._iterate(words[words.index("--config") + 1], fails=note == "fails")
        elif words[:2] == ["python", "-c"]:
            exec(words[2], {})  # importing torch once is enough
        elif words[0] == "nlac" and ">" not in words:
            self.said[command.strip()] = result = CliRunner().invoke(app, words[1:])
            assert result.exit_code == 0, f"{command}: {result.output}"
        else:
            python = f"PATH={Path(sys.executable).parent}:$PATH PYTHONPATH={PROJECT_ROOT}"
            done = command.replace("nlac ", "python -m flows.cli ", 1) if words[0] == "nlac" else command
            subprocess.run(["bash", "-ec", f"export {python}; {done}"], cwd=self.folder, check=True)

    def _iterate(self, file: str, *, fails: bool) -> None:
        config = load_config(file)
        check_config(config, self.store.root)
        config = self.small(config)
        if fails:
            with pytest.raises(StageInterrupted, match=r"127\.0\.0\.1"):
                asyncio.run(run_iteration(self.store, config))
        else:
            asyncio.run(run_iteration(self.store, config))


@pytest.fixture
def newcomer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """A reader in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NLAC_DATA", str(tmp_path / "data"))
    monkeypatch.setenv(ALLOW_IMPORT, "tests")
    yield Reader(tmp_path, monkeypatch)
    sys.modules.pop("nim", None)


@pytest.fixture
def reader(newcomer: Reader) -> Reader:
    """A reader who has made the lake of the tutorials."""
    (newcomer.folder / "lake.yaml").write_text(block("index.md", "yaml"), encoding="utf-8")
    newcomer.follow("index.md")
    return newcomer


def block(page: str, language: str) -> str:
    """The first block of a page in a language."""
    text = (PAGES / page).read_text(encoding="utf-8")
    found = re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)
    assert found
    return found[1]


@pytest.mark.slow
def test_an_environment_of_ones_own_is_checked_and_iterated_on(
    newcomer: Reader, make_config: Callable[..., Config]
) -> None:
    def small(config: Config) -> Config:
        assert config.environment.name == "nim:Nim"
        return make_config(
            "tests.support.answer_rules:takes", environment=config.environment.model_dump(),
            rollout={"episodes": 12, "max_steps": 8, "exploration": 0.3},
        )  # fmt: skip

    for language, file in (("python", "nim.py"), ("yaml", "nim.yaml")):
        (newcomer.folder / file).write_text(block("../environments.md", language), encoding="utf-8")
    newcomer.small = small
    newcomer.follow("../environments.md", until="## The protocol")
    (validated,) = newcomer.said.values()
    assert validated.stdout.startswith("nim: no fault")
    played = connect(newcomer.store).sql("select distinct environment from episodes").fetchall()
    assert played == [("nim",)] and newcomer.store.current("trial", 0).state == "finished"


@pytest.mark.slow
def test_logs_of_ones_own_are_imported_and_trained_on(
    newcomer: Reader, make_config: Callable[..., Config]
) -> None:
    def small(config: Config) -> Config:
        assert (config.run, config.rollout.source, config.environment.name) == ("logged", "none", "logged")
        return make_config(
            "tests.support.logs:helpful", run=config.run, rollout="none", environment=config.environment.model_dump(),
            roles={role: {"engine": "rules", "structured": False} for role in ("policy", "refine")},
        )  # fmt: skip

    newcomer.means = {
        "FILE": str(write_json(newcomer.folder / "mine.json", [conversation(n) for n in range(8)]))
    }
    newcomer.small = small
    newcomer.follow("../logged.md", until="## File format")
    assert "8 episodes" in newcomer.said[next(iter(newcomer.said))].stdout
    made = connect(newcomer.store).sql("select stage from stages where run = 'logged' order by started_at")
    assert {"critic-sft", "policy-distillation"} < {stage for (stage,) in made.fetchall()}


@pytest.mark.slow
def test_a_baseline_stands_beside_a_run(reader: Reader) -> None:
    reader.follow("baseline.md")
    compared = reader.said["nlac runs compare lake rft"].stdout
    assert "algorithm: lake nlac, rft rft" in compared
    assert [line for line in compared.splitlines() if ": lake " in line] == ["algorithm: lake nlac, rft rft"]
    curve = connect(reader.store).sql(
        "select run, iteration, environment_steps from learning_curve order by all"
    )
    rows = curve.fetchall()
    assert [row[:2] for row in rows] == [("lake", 0), ("lake", 1), ("rft", 0), ("rft", 1)]
    assert rows[0][2] == rows[2][2], "both play the same uniform episodes first"


@pytest.mark.slow
def test_a_failed_stage_is_gone_on_from(reader: Reader) -> None:
    reader.follow("failed_stage.md")
    said = reader.said["nlac explain critic-sft 0 --config mended.yaml"].stdout
    assert "run 'broken': reuse" in said
    states = connect(reader.store).sql(
        "select stage, count(*) from stages where state = 'current' group by all"
    )
    made = dict(states.fetchall())
    assert made["critique"] == made["evaluation"] == 1 and set(made.values()) == {1}, "each was computed once"


def test_a_bigger_model_is_checked_on_a_laptop(reader: Reader) -> None:
    reader.follow("bigger_model.md")
    assert load_config(reader.folder / "mine.yaml").model.name == "Qwen/Qwen2.5-7B-Instruct"


def test_the_index_says_what_each_test_of_a_tutorial_executes() -> None:
    index = (PAGES / "index.md").read_text(encoding="utf-8")
    for page, until in (("../environments.md", "## The protocol"), ("../logged.md", "## File format")):
        assert f"`{until.lstrip('# ')}`" in index and until in (PAGES / page).read_text(encoding="utf-8")


def test_every_tutorial_of_the_list_is_there_and_every_page_is_in_the_list() -> None:
    listed = set(re.findall(r"\]\(([\w.]+?)(?:#[\w-]+)?\)", (PAGES / "index.md").read_text(encoding="utf-8")))
    there = {path.name for path in PAGES.iterdir()} - {"index.md"}
    assert there <= listed and all((PAGES / name).exists() for name in listed)
