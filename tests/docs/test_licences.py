"""docs/licences.md names every data file of the repository, and none that is gone."""

import fnmatch
import re
from collections import Counter

import pytest
import yaml

from schemas.load import PROJECT_ROOT
from tests.support.tracked import tracked_files

PAGE = (PROJECT_ROOT / "docs" / "licences.md").read_text(encoding="utf-8")
FILES = PAGE.partition("## Data files")[2].partition("\n## ")[0]
ROWS = re.findall(r"^\| `([^`]+)` \|", FILES, re.MULTILINE)
PROGRAM = {".py", ".ipynb", ".md", ".j2", ".toml", ".txt", ".typed"}
"""Code, pages, prompts and requirements: written here, and no data."""
SETTINGS = {
    ".dockerignore",
    "LICENSE",
    "NOTICE",
    "Makefile",
    ".gitignore",
    ".pre-commit-config.yaml",
    "mkdocs.yml",
    "prefect.yaml",
    ".ci/run",
}


def data_files() -> set[str]:
    """What is neither program nor settings."""
    return {
        str(path) for path in tracked_files()
        if path.suffix not in PROGRAM and str(path) not in SETTINGS and path.parts[0] not in ("configs", "deploy")
    }  # fmt: skip


def test_every_data_file_has_one_line() -> None:
    files = data_files()
    assert "tests/data/planted_leaks.yaml" in files, "data files are looked for"
    named = Counter(file for row in ROWS for file in fnmatch.filter(sorted(files), row))
    missing = sorted(files - set(named))
    assert not missing, f"docs/licences.md names no origin and terms for: {', '.join(missing)}"
    assert set(named.values()) == {1}, "a file has one line, its own or that of its folder"
    assert [row for row in ROWS if not fnmatch.filter(files, row)] == [], "no line is of a file that is gone"


def test_a_line_says_origin_and_terms() -> None:
    table = [line for line in FILES.splitlines() if line.startswith("| `")]
    assert table
    for line in table:
        content, origin, terms = (cell.strip() for cell in line.strip("|").split("|")[1:])
        assert content and origin and terms, line


@pytest.mark.parametrize("word", ["rows", "problems", "objects"])
def test_counts_on_the_page_are_the_files_own(word: str) -> None:
    folder = PROJECT_ROOT / "tasks"
    counted = {
        "rows": ("datasets/data/general_chat.jsonl", 0),
        "problems": ("environments/math/data/problems.jsonl", 0),
        "objects": ("environments/twenty_questions/data/objects.tsv", 1),
    }
    name, header = counted[word]
    lines = len((folder / name).read_text(encoding="utf-8").splitlines()) - header
    (row,) = (line for line in PAGE.splitlines() if line.startswith(f"| `tasks/{name}`"))
    assert str(lines) in row.split("|")[2].split()


def test_every_hub_model_that_a_configuration_names_is_on_the_page() -> None:
    named = set()
    for path in (PROJECT_ROOT / "configs").rglob("*.yaml"):
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        engines = (content.get("engines") or {}).values()
        named |= {section.get("model") for section in engines} | {(content.get("model") or {}).get("name")}
    hub = {name for name in named if isinstance(name, str) and re.fullmatch(r"[\w.-]+/[\w.-]+", name)}
    assert hub, "some configuration names a model of a hub"
    assert all(f"`{name}`" in PAGE for name in hub), hub
