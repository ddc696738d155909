"""The site of docs/: it builds with every link checked, and fetches nothing when it is read."""

import re
import shlex
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort
from typer.testing import CliRunner

from flows.cli.main import app
from schemas.load import PROJECT_ROOT

SETTINGS = PROJECT_ROOT / "mkdocs.yml"


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")  # an advertisement of the theme


def build_site(settings: Path, site: Path) -> None:
    build(load_config(str(settings), site_dir=str(site), strict=True))


@pytest.mark.slow
def test_the_site_builds_and_its_pages_fetch_nothing(tmp_path: Path) -> None:
    build_site(SETTINGS, tmp_path)
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 20 and (tmp_path / "commands.html") in pages
    for page in pages:
        content = page.read_text(encoding="utf-8")
        fetched = re.findall(r"<(?:script|img|iframe)[^>]*\ssrc=[\"']?(?:https?:)?//[^\"' >]+", content)
        fetched += re.findall(
            r"<link[^>]*rel=[\"']?(?:stylesheet|icon|preconnect)[^>]*href=[\"']?(?:https?:)?//", content
        )
        assert not fetched, f"{page.name}: {fetched}"
        prose = re.sub(r"<(pre|code|script)\b.*?</\1>", "", content, flags=re.DOTALL)
        assert not re.search(r"\]\(|\*\*\w", prose), f"{page.name}: Markdown that was not rendered"


def test_every_configuration_that_a_page_names_is_there() -> None:
    named: dict[str, list[str]] = {}
    for page in (*PROJECT_ROOT.glob("*.md"), *(PROJECT_ROOT / "docs").rglob("*.md")):
        for file in re.findall(r"configs/[\w./-]+\.yaml", page.read_text(encoding="utf-8")):
            named.setdefault(file, []).append(page.name)
    gone = {file: pages for file, pages in named.items() if not (PROJECT_ROOT / file).is_file()}
    assert len(named) > 10 and {file for file in gone if not re.search(r"/[A-Z]+\.yaml$", file)} == set(), (
        gone
    )


def test_the_checks_on_the_page_about_gpus_pass(tmp_path: Path) -> None:
    page = (PROJECT_ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    commands = re.findall(r"^nlac (config check .*--elsewhere.*)$", page, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        checked = CliRunner().invoke(app, shlex.split(command), env={"NLAC_DATA": str(tmp_path)})
        assert checked.exit_code == 0, checked.output
        peaks = re.findall(r"^training +\d+ +([\d.]+) ", checked.stdout, re.MULTILINE)
        assert all(f"| {peak} with contexts" in page for peak in peaks) and len(peaks) == 1


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site of one page under the real settings, that page being the first of the menu."""
    settings = SETTINGS.read_text(encoding="utf-8").partition("nav:\n  - Home")[0]
    (tmp_path / "mkdocs.yml").write_text(f"{settings}nav: [index.md]\n", encoding="utf-8")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "site_links.py").write_bytes((PROJECT_ROOT / "docs" / "site_links.py").read_bytes())
    return tmp_path


def test_a_file_outside_docs_is_shown_as_its_path(site: Path) -> None:
    (site / "docs" / "index.md").write_text("# Home\n\nSee [the settings](../mkdocs.yml).\n")
    build_site(site / "mkdocs.yml", site / "out")
    assert "See <code>mkdocs.yml</code>." in (site / "out" / "index.html").read_text()


@pytest.mark.parametrize(
    ("link", "said"),
    [
        ("[x](nowhere.md)", "nowhere.md"),
        ("[x](index.md#nowhere)", "#nowhere"),
        ("[x](../nowhere.py)", "nowhere.py is no file of the repository"),
    ],
)
def test_a_link_that_leads_nowhere_fails(
    site: Path, link: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    (site / "docs" / "index.md").write_text(f"# Home\n\n{link}\n")
    with pytest.raises((Abort, FileNotFoundError)) as refused:
        build_site(site / "mkdocs.yml", site / "out")
    assert said in f"{refused.value} {caplog.text}"


def test_a_page_that_is_in_no_menu_fails(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    (site / "docs" / "index.md").write_text("# Home\n")
    (site / "docs" / "forgotten.md").write_text("# Forgotten\n")
    with pytest.raises(Abort):
        build_site(site / "mkdocs.yml", site / "out")
    assert "forgotten.md" in caplog.text
