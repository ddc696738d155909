"""README is short and names every environment, and the first pages' queries run as they stand."""

import io
import re
from collections.abc import Callable

from rich.console import Console

from flows.cli.summary import FIRST_QUERY, summary
from schemas.config import Config
from schemas.load import PROJECT_ROOT
from storage.sql.views import connect
from storage.store import Store
from tasks.environments.registry import BUILTIN
from tests.support.committed import commit_rows
from tests.support.iterations import Iterate
from tests.support.rows import episode


def page(name: str) -> str:
    return (PROJECT_ROOT / name).read_text(encoding="utf-8")


def test_the_lineage_query_joins_a_distilled_action_back_to_its_transition(
    store: Store, make_config: Callable[..., Config], iterate: Iterate
) -> None:
    iterate(make_config(improvement={"states": 6, "futures": 2}))
    (query,) = re.findall(r"```sql\n(.*?)```", page("docs/quickstart.md"), re.DOTALL)
    with connect(store) as database:
        cursor = database.execute(query)
        columns = [column[0] for column in cursor.description]
        found = cursor.fetchall()
        distilled = database.execute(
            "select count(*) from training_rows where stage = 'policy-distillation' and role = 'policy'"
        ).fetchone()
        lineage = database.execute("select count(*) from lineage").fetchone()
    assert len(found) == 2 * distilled[0] > 0  # a row a future, k = 2
    assert lineage == distilled
    for column in ("transition_id", "target", "critique", "distilled", "adapter_version", "success"):
        assert all(row[columns.index(column)] is not None for row in found), column


def test_the_query_of_the_proof_shows_improved_actions(
    store: Store, make_config: Callable[..., Config], iterate: Iterate
) -> None:
    iterate(make_config(run="nlac-0", improvement={"states": 6, "futures": 2}))
    (query,) = re.findall(
        r'^nlac sql --data benchmarks/out/learning --format json "(.*?)"$',
        page("docs/learning.md"),
        re.DOTALL | re.MULTILINE,
    )
    with connect(store) as database:
        found = database.execute(query).fetchall()
    assert len(found) > 1
    for observation, judged, futures, critique, refined in found:
        assert observation and critique and len(futures) == 2
        assert judged != refined, "only changed actions are asked for"


def test_the_first_query_gives_a_rate_to_each_run_and_iteration(store: Store) -> None:
    for run, success in (("a", True), ("b", False)):
        played = [episode(run=run, split="eval", success=success)]
        commit_rows(store, "evaluation", 0, {"episodes": played}, run=run)
    with connect(store) as database:
        assert database.execute(FIRST_QUERY).fetchall() == [("a", 0, 1.0), ("b", 0, 0.0)]
    assert f'sql "{FIRST_QUERY}"' in page("docs/quickstart.md")


def test_the_quickstart_shows_every_line_that_the_program_prints_after_an_iteration(
    store: Store, make_config: Callable[..., Config], iterate: Iterate
) -> None:
    config, said = make_config(improvement={"states": 6, "futures": 2}), io.StringIO()
    iterate(config)
    summary(Console(file=said, soft_wrap=True), store, config, 0, 0.0, "http://127.0.0.1:4217")
    printed = said.getvalue().partition("\n evaluation ")[2].strip().splitlines()[1:]
    (shown,) = re.findall(r"\n evaluation .*\n((?:.*\n)+?)```", page("docs/quickstart.md"))
    assert [kind(line) for line in printed if not line.startswith("ALARM: ")] == list(
        map(kind, shown.splitlines())
    )


def kind(line: str) -> str:
    """What a line of the ending is about: of a command its purpose, else its first words."""
    return line.partition("   # ")[2] or " ".join(line.partition(":")[0].split()[:3])


def test_the_readme_has_a_row_for_every_built_in_environment() -> None:
    table = page("README.md").partition("## Environments")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == sorted(BUILTIN)


def test_the_readme_is_short_and_its_links_lead_somewhere() -> None:
    readme = page("README.md")
    assert len(readme.splitlines()) <= 95 and "@@" not in readme
    linked = [link for link in re.findall(r"\]\(([^)]+)\)", readme) if not link.startswith("http")]
    assert len(linked) > 10
    for link in linked:
        file, _, heading = link.partition("#")
        assert (PROJECT_ROOT / file).exists(), link
        slugs = {slug(line) for line in page(file).splitlines() if line.startswith("#")} if heading else set()
        assert not heading or heading in slugs, link


def slug(heading: str) -> str:
    """The anchor that a heading gets."""
    return re.sub(r"[^\w -]", "", heading.lstrip("# ").lower()).replace(" ", "-")
