"""Imports point downwards: what each package may import of the project."""

import ast
from pathlib import Path

import pytest

from schemas.load import PROJECT_ROOT

PACKAGES = {
    "schemas": set[str](),
    "prompts": set[str](),
    "storage": {"schemas"},
    "tasks": {"schemas", "prompts", "storage"},
    "flows/stack": {"schemas", "storage", "tasks"},
    "flows/deployments": {"schemas", "prompts", "storage", "tasks", "flows.stack"},
    "flows/cli": {"schemas", "storage", "tasks", "flows.stack", "flows.deployments"},
}
OURS = {name.partition("/")[0] for name in PACKAGES}


def imported(file: Path) -> set[str]:
    """The project's packages that a file imports; of flows with the subpackage."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    parts = [name.split(".") for name in names]
    ours = [p for p in parts if p[0] in {*OURS, "prefect"}]
    return {".".join(p[:2]) if p[0] == "flows" else p[0] for p in ours}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_what_lies_below_it(package: str) -> None:
    allowed = {*PACKAGES[package], package.replace("/", ".")} | ({"prefect"} if "flows" in package else set())
    files = sorted((PROJECT_ROOT / package).rglob("*.py"))
    assert files
    wrong = {str(file.relative_to(PROJECT_ROOT)): imported(file) - allowed for file in files}
    assert {file: names for file, names in wrong.items() if names} == {}
