"""docs/tutorials/learning_curve.ipynb: every cell runs, from an empty folder to a curve."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from schemas.load import PROJECT_ROOT
from storage.store import Store

NOTEBOOK = PROJECT_ROOT / "docs" / "tutorials" / "learning_curve.ipynb"


@pytest.mark.long
def test_the_notebook_ends_with_a_learning_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(PROJECT_ROOT))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")  # else a warning about where Jupyter keeps its files
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, resources=resources).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert any("image/png" in output.get("data", {}) for output in shown), "the curve is drawn"
    store = Store(tmp_path / "lake_notebook" / "data")
    assert store.iterations("lake") == [0, 1, 2]
    tables = [output["data"]["text/plain"] for output in shown if "text/html" in output.get("data", {})]
    assert "success_rate" in tables[0] and "refined_action" in tables[1]


def test_the_notebook_is_kept_without_outputs() -> None:
    cells = [cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
    assert cells and all(not cell.outputs and cell.execution_count is None for cell in cells)
