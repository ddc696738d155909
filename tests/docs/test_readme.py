"""The README's queries are true: run as they stand."""

import re
from collections.abc import Callable

from flows.cli.summary import FIRST_QUERY
from schemas.config import Config
from schemas.load import PROJECT_ROOT
from storage.sql.views import connect
from storage.store import Store
from tests.support.committed import commit_rows
from tests.support.iterations import Iterate
from tests.support.rows import episode


def test_the_lineage_query_joins_a_distilled_action_back_to_its_transition(
    store: Store, make_config: Callable[..., Config], iterate: Iterate
) -> None:
    iterate(make_config(improvement={"states": 6, "futures": 2}))
    readme = (PROJECT_ROOT / "README.md").read_text(encoding="utf-8")
    (query,) = re.findall(r"```sql\n(.*?)```", readme, re.DOTALL)
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
    readme = (PROJECT_ROOT / "README.md").read_text(encoding="utf-8")
    (query,) = re.findall(
        r'^nlac sql --data benchmarks/out/learning .*?"(.*?)"$', readme, re.DOTALL | re.MULTILINE
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
    assert f'sql "{FIRST_QUERY}"' in (PROJECT_ROOT / "README.md").read_text(encoding="utf-8")


def test_no_placeholder_is_left() -> None:
    assert "@@" not in (PROJECT_ROOT / "README.md").read_text(encoding="utf-8")
