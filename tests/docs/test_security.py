"""SECURITY.md names tests that are there."""

import re

from schemas.load import PROJECT_ROOT


def test_every_test_that_holds_a_promise_is_there() -> None:
    page = (PROJECT_ROOT / "SECURITY.md").read_text(encoding="utf-8")
    files, functions = re.findall(r"`(tests/[^`]+)`", page), re.findall(r"`(test_\w+)`", page)
    assert len(files) > 5 and len(functions) > 5
    assert [file for file in files if not (PROJECT_ROOT / file).is_file()] == []
    code = "".join(path.read_text(encoding="utf-8") for path in (PROJECT_ROOT / "tests").rglob("test_*.py"))
    assert [name for name in functions if f"def {name}(" not in code] == []
