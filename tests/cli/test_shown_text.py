"""Stored text in the terminal and in Prefect: `<script>`, ANSI and links are text."""

import asyncio
import io
import json
from pathlib import Path

import duckdb
import pytest
from rich.console import Console
from typer.testing import CliRunner

from flows.cli.display import Display
from flows.cli.iteration_process import why_failed
from flows.cli.main import app
from flows.cli.summary import summary
from flows.deployments import reporting
from flows.deployments.reporting import result_text
from flows.stack.record import Stack
from schemas.load import parse_config
from storage.sql.render import render
from storage.store import Committed, Store
from tests.support.cli import nlac
from tests.support.committed import commit_rows
from tests.support.local_http import answering
from tests.support.logs import conversation, write_json
from tests.support.rows import episode, evaluation, transitions

HOSTILE = "\x1b]8;;http://x\x07[link=http://x]<script>\x1b[2J"
SHOWN = "\\x1b]8;;http://x\\x07[link=http://x]<script>\\x1b[2J"


ACTION = f"{HOSTILE} [a](http://evil)"


def reported(store: Store) -> Committed:
    """A run whose report quotes a hostile action; its last stage."""
    for iteration, actions in enumerate((["a", "b", "c", "d"], [ACTION] * 4)):
        episodes = [episode(n, iteration=iteration) for n in range(4)]
        steps = [
            step.model_copy(update={"action": str(n) if step.step else action})
            for n, (row, action) in enumerate(zip(episodes, actions, strict=True))
            for step in transitions(row)
        ]
        commit_rows(store, "rollout", iteration, {"episodes": episodes, "transitions": steps})
    return commit_rows(store, "evaluation", 1, {"evaluations": [evaluation("p", 3, iteration=1)]})


def is_text(said: str, markup: bool = False) -> bool:
    """Whether nothing in it steers a terminal and, unless markup may stand, nothing is Markdown or HTML."""
    return not {"\x1b", "\x07"} & set(said) and (
        markup or ("<script>" not in said and "](http://evil" not in said)
    )


def test_the_report_of_an_iteration_is_text_in_the_terminal_and_in_prefect(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated = reported(store)
    out = io.StringIO()
    console = Console(file=out, markup=False, highlight=False, soft_wrap=True)
    summary(console, store, parse_config({"run": "trial"}, "a test"), 1, 0.0, "http://127.0.0.1:9")
    assert "[2J" in out.getvalue() and is_text(out.getvalue(), markup=True)
    for words, markup in ((["report", "1"], True), (["report", "1", "--format=markdown"], False)):
        said = nlac(store, *words, "--run=trial").stdout
        assert "2J" in said and is_text(said, markup), said
    pages: list[str] = []

    async def keep(text: str, key: str, description: str) -> None:
        pages.append(f"{text}\n{description}")

    monkeypatch.setattr(reporting, "acreate_markdown_artifact", keep)
    monkeypatch.setattr(
        reporting, "create_markdown_artifact", lambda text, **more: asyncio.run(keep(text, **more))
    )
    reporting.publish_result(store, evaluated, None)
    assert asyncio.run(reporting.publish_report(store, "trial", 1)) is not None
    assert len(pages) == 2 and all("2J" in page and is_text(page) for page in pages), pages


def test_the_reason_of_a_failed_run_is_text(tmp_path: Path) -> None:
    told = json.dumps({"state": {"message": HOSTILE}}).encode()
    with answering(lambda request: (200, told)) as server:
        port = int(server.url.rpartition(":")[2])
        assert why_failed(Stack(pid=1, port=port, data=str(tmp_path)), "1234") == SHOWN


def test_a_query_draws_stored_text_as_text(store: Store) -> None:
    played = episode()
    rows = [row.model_copy(update={"observation": HOSTILE}) for row in transitions(played)]
    commit_rows(store, "rollout", 0, {"episodes": [played], "transitions": rows})
    result = nlac(store, "sql", "select observation from transitions")
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
    for said in ("1 episode,", "already"):
        result = nlac(store, "import", str(file))
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
