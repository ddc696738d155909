"""docs/queries.md: its queries run as they stand over a real iteration, and have something to say."""

import re
from collections.abc import Callable

from schemas.config import Config
from schemas.load import PROJECT_ROOT
from storage.sql.measures import MEASURES
from storage.sql.views import connect
from storage.store import Store
from tests.support.iterations import Iterate

SILENT = ("split = 'validation'", "status <> 'ok'", "l.critic_version")
"""Of queries about what this iteration does not have: validation tasks, faults, a model that plays the successor."""


def test_every_query_answers_over_an_iteration_and_every_view_has_one(
    store: Store, make_config: Callable[..., Config], iterate: Iterate
) -> None:
    iterate(make_config(improvement={"states": 6, "futures": 2, "action": "replayed"}))
    page = (PROJECT_ROOT / "docs" / "queries.md").read_text(encoding="utf-8")
    queries = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    assert len(queries) > 10
    with connect(store) as database:
        for query in queries:
            found = database.execute(query).fetchall()
            assert found or any(part in query for part in SILENT), query
    for name in MEASURES.keys() - {"generations"}:  # token_costs sums it up
        assert any(re.search(rf"\bfrom {name}\b", query) for query in queries), name
