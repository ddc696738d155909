"""Results of the reliability runs as files that are committed."""

import json
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.checks import machine
from benchmarks.learning.result_files import commit
from schemas.load import PROJECT_ROOT
from storage.files import replace_text

FOLDER = PROJECT_ROOT / "docs" / "results" / "reliability"


def write_result(name: str, content: dict[str, Any], folder: Path = FOLDER) -> Path:
    """Write `NAME.json`, whole or not at all, with machine, commit and date before the content."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    made = {"machine": machine(), "commit": commit(), "date": date.today().isoformat(), **content}
    replace_text(path, json.dumps(made, indent=1, ensure_ascii=False) + "\n")
    return path
