"""docs/cluster.md: its costs are what the command says, and the names on it are those of the manifests."""

import re
import shlex

from typer.testing import CliRunner

from flows.cli.main import app
from schemas.load import PROJECT_ROOT
from storage.store import Store
from tests.support.kubernetes import FOLDER, POOLS, manifests, template_of

PAGE = (PROJECT_ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")


def cost(store: Store, words: str) -> tuple[str, str, str]:
    done = CliRunner().invoke(app, shlex.split(words), env={"NLAC_DATA": str(store.root)})
    assert done.exit_code == 0, done.output
    found = re.search(r"at most ([\d,.]+) hours, ([\d,]+) GPU hours, ([\d,]+) at", done.stdout)
    assert found
    return found[1], found[2], found[3]


def test_the_costs_on_the_page_are_those_of_the_command(store: Store) -> None:
    (command,) = re.findall(r"^nlac (config check .*\\\n.*--gpu-hour-price 2)$", PAGE, re.MULTILINE)
    rows = re.findall(
        r"^\| `(configs/[\w./-]+)` \| (.+) \|$", PAGE.partition("<!-- cost -->")[2], re.MULTILINE
    )
    assert len(rows) == 3
    for file, cells in rows:
        words = re.sub(r"configs/\S+", file, command.replace("\\\n", " "))
        cheap = cost(store, words)
        dear = cost(store, words.replace("--gpu-hour-price 2", "--gpu-hour-price 4"))
        assert cells.split(" | ") == [*cheap, dear[2]]


def test_the_pools_defaults_on_the_page_are_the_templates() -> None:
    properties = {pool: template_of(pool)["variables"]["properties"] for pool in POOLS}
    table = {
        cells[0]: cells[1:3]
        for line in PAGE.splitlines() if line.startswith("| `")
        for cells in [[cell.strip() for cell in line.strip("| ").split(" | ")]] if len(cells) == 4
    }  # fmt: skip
    for names, (first, others) in table.items():
        for index, name in enumerate(re.findall(r"`(\w+)`", names)):
            for pool, cell in (("orchestration", first), ("inference", others), ("training", others)):
                default = properties[pool][name].get("default")
                if isinstance(default, str | int):
                    assert cell.strip("`").split(", ")[index] == str(default), (name, pool)
    assert {"`gpus`", "`shared_memory`", "`scratch`"} <= set(table)


def test_what_the_page_refers_to_is_there() -> None:
    named = {(one["kind"].lower(), one["metadata"]["name"]) for one in manifests()}
    kinds = {"deploy": "deployment", "svc": "service", "job": "job", "secret": "secret"}
    referred = re.findall(r"\b(deploy|svc|job)/((?:nlac|prefect|mlflow)[\w-]*)", PAGE)
    referred += re.findall(r"create (secret) generic ([\w-]+)", PAGE)
    wanted = {(kinds[kind], name) for kind, name in referred}
    assert len(wanted) > 7 and wanted <= named
    files = set(re.findall(r"`([\w.]+\.yaml)`", PAGE)) - {"mine.yaml", "prefect.yaml"}
    assert files and all((FOLDER / file).exists() for file in files)
    paths = set(re.findall(r"\bdeploy/(?!nlac)[\w./]*\w", PAGE))
    assert len(paths) > 5 and all((PROJECT_ROOT / path).exists() for path in paths)
