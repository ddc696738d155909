"""Stored text in the terminal: `<script>`, ANSI and links are text."""

import io
from pathlib import Path

import duckdb
import pytest
from rich.console import Console
from typer.testing import CliRunner

from flows.cli.display import Display
from flows.cli.main import app
from flows.deployments.reporting import result_text
from storage.sql.render import render
from storage.store import Store
from tests.support.committed import commit_rows
from tests.support.logs import conversation, write_json
from tests.support.rows import episode, transitions

HOSTILE = "\x1b]8;;http://x\x07[link=http://x]<script>\x1b[2J"
SHOWN = "\\x1b]8;;http://x\\x07[link=http://x]<script>\\x1b[2J"


def test_a_query_draws_stored_text_as_text(store: Store) -> None:
    played = episode()
    rows = [row.model_copy(update={"observation": HOSTILE}) for row in transitions(played)]
    commit_rows(store, "rollout", 0, {"episodes": [played], "transitions": rows})
    result = CliRunner().invoke(
        app, ["sql", "select observation from transitions"], env={"NLAC_DATA": str(store.root)}
    )
    assert "[link=http://x]<script>" in result.stdout and not {"\x1b", "\x07"} & set(result.stdout)


@pytest.mark.parametrize("how", ["csv", "json", "table"])
def test_a_terminal_gets_no_control_characters_and_a_file_gets_them_all(how: str) -> None:
    query = duckdb.connect().sql("select chr(27) || '[2J' || chr(155) as x")
    terminal, file = io.BytesIO(), io.BytesIO()
    render(query, how, terminal, terminal=True)  # type: ignore[arg-type]
    render(query, how, file)  # type: ignore[arg-type]
    assert not {"\x1b", "\x9b"} & set(terminal.getvalue().decode())
    assert how == "table" or "\x9b" in file.getvalue().decode()


def test_a_failure_quotes_what_it_read_as_text(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["verify"], env={"NLAC_DATA": str(tmp_path / "\x1b[2J")})
    assert result.exit_code == 3 and "\\x1b[2J" in result.output and "\x1b" not in result.output


def test_the_name_of_a_log_is_shown_as_text(store: Store, tmp_path: Path) -> None:
    file = write_json(tmp_path / "a\x1b]8;;x\x07[link=x]<script>.json", [conversation(0)])
    for said in ("1 episodes", "already"):
        result = CliRunner().invoke(app, ["import", str(file)], env={"NLAC_DATA": str(store.root)})
        assert result.exit_code == 0 and said in result.output, result.output
        assert "\\x1b]8;;x\\x07[link=x]<script>" in result.output and "\x1b" not in result.output


def test_the_display_prints_lines_as_they_stand(tmp_path: Path) -> None:
    out = io.StringIO()
    console = Console(file=out, markup=False, highlight=False, soft_wrap=True)
    Display(console, tmp_path, "trial", [], 0.0).show(HOSTILE)
    assert out.getvalue() == f"{SHOWN}\n"


def test_a_result_in_prefect_shows_paths_as_text(tmp_path: Path) -> None:
    root = tmp_path / "<script>[x](javascript:y)`\x1b"
    made = commit_rows(Store(root), "rollout", 0, {"episodes": [episode()]})
    text = result_text(made, "http://127.0.0.1:5000/) <script>")
    assert "<script>" not in text and "](javascript" not in text and "\x1b" not in text
    assert "| episodes | 1 | 0 |" in text
