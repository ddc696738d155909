"""docs/reproduction.md: every cluster file has its row and its cost, which is that of `nlac config check`."""

import re

import pytest

from schemas.load import PROJECT_ROOT, load_config
from tasks.pipeline.plan import run_seconds

FOLDER = PROJECT_ROOT / "configs" / "cluster"
FILES = {path.stem for path in FOLDER.glob("*.yaml")}
RUNS, _, COST = (
    (PROJECT_ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8").partition("\n## Cost\n")
)
ITERATIONS = 320


def test_every_cluster_file_has_its_row_of_the_papers_table_and_each_model_the_airline() -> None:
    rows = [line.strip("| ").split(" | ") for line in RUNS.splitlines() if line.startswith("| Q")]
    assert sorted(re.findall(r"`([\w.-]+)\.yaml` \|$", RUNS, re.MULTILINE)) == sorted(FILES)
    tasks = [(cells[0], re.split(r"[ ,]", cells[1])[0]) for cells in rows]
    expected = {"MATH500-Hard": 1, "20": 1, "tau-bench": 2}
    for model in ("QwQ-32B", "Qwen2.5-7B-Instruct"):
        assert {task: tasks.count((model, task)) for task in expected} == expected
        assert any(cells[0] == model and "airline" in cells[1] for cells in rows)


def test_the_costs_are_those_of_the_rates_beside_them() -> None:
    found = set()
    for names, generated, trained, hours, gpu_hours in re.findall(
        r"^\| (`qw.*`) \| ([\d,]+), ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$", COST, re.MULTILINE
    ):
        first, *others = re.findall(r"`([\w.-]+)`", names)
        stem = first.removesuffix("-twenty-questions")
        for name in (first, *(f"{stem}{other}" for other in others)):
            rates = {"inference": number(generated), "training": number(trained)}
            took = run_seconds(load_config(FOLDER / f"{name}.yaml"), ITERATIONS, {}, rates) / 3600
            assert number(hours) == pytest.approx(took, rel=0.005), name
            assert number(gpu_hours) == pytest.approx(8 * took, rel=0.005), name
            found.add(name)
    assert found == FILES


def number(cell: str) -> float:
    return float(cell.replace(",", ""))
