"""`nlac import` as a user calls it."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli.main import app
from tests.support.logs import TOOLS, conversation, write_json


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def nlac(data: Path, *words: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(word) for word in words], env={"NLAC_DATA": str(data)})
    return result.exit_code, result.stdout, result.stderr


def test_a_file_is_imported_once_and_its_rejects_can_be_asked_for(data: Path, tmp_path: Path) -> None:
    file = write_json(tmp_path / "log.json", [conversation(0), {"reward": 1}])
    tools = write_json(tmp_path / "tools.json", TOOLS)
    code, said, _ = nlac(data, "import", file, "--format", "openai-chat", "--run", "shop", "--tools", tools)
    assert code == 0 and "1 episode, 3 transitions in run 'shop', iteration 0" in said
    assert "rejected: 1 bad_messages" in said
    query = said.partition('nlac sql "')[2].partition('"')[0]
    assert nlac(data, "sql", query, "--format", "csv")[1] == "record,error\n1,messages: Field required\n"
    code, said, _ = nlac(data, "import", file, "--run", "shop")
    assert code == 0 and "nothing is added" in said
    assert nlac(data, "sql", "select count(*) as n from episodes", "--format", "csv")[1] == "n\n1\n"
    assert nlac(data, "verify")[0] == 0


def test_the_name_of_a_file_tells_its_format(data: Path, tmp_path: Path) -> None:
    lines = tmp_path / "log.jsonl"
    lines.write_text("{broken\n")
    code, _, said = nlac(data, "import", lines)
    assert code == 1 and "no record can be used (1 not_json)" in said
    code, _, said = nlac(data, "import", lines.rename(tmp_path / "log.parquet"))
    assert code == 1 and "not a readable Parquet file" in said


def test_what_can_not_be_is_one_line(data: Path, tmp_path: Path) -> None:
    code, _, said = nlac(data, "import", tmp_path / "missing.json")
    assert code == 1 and said.count("\n") == 1 and "missing.json: can't be read" in said
    code, _, said = nlac(data, "import", write_json(tmp_path / "a.json", []), "--run", "../escape")
    assert code == 2 and "run: " in said
    assert not data.exists()
