"""The benchmark of the data plane, small: its run is what it says, and its parts measure the program's own answers."""

from pathlib import Path

import pytest

from benchmarks.data.large_run import Size, build
from benchmarks.data.parts import AGGREGATE, PARTS, bare_glob
from storage.sql.views import connect
from storage.store import Store
from storage.verify import verify


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return build(tmp_path_factory.mktemp("large"), Size(folders=5, rows=100, tokens=4))


def test_the_run_holds_what_it_says(store: Store) -> None:
    with connect(store, unsafe=True) as database:
        episodes = "select count(*), sum(steps), max(steps) from episodes"
        assert database.sql(episodes).fetchall() == [(5 * 4, 500, 30)]
        joined = "from priorities p join transitions t using (transition_id)"
        times = f"select n, count(*) from (select count(*) as n {joined} group by transition_id) group by n"
        assert dict(database.sql(times).fetchall()) == {1: 150, 2: 50}
        before_it_was_played = f"select count(*) {joined} where t.iteration > p.iteration"
        assert database.sql(before_it_was_played).fetchall() == [(0,)]
        whole, bare = (
            database.sql(AGGREGATE.format(of)).fetchall() for of in ("transitions", bare_glob(store.root))
        )
        assert whole == bare
    assert verify(store) == []


def test_a_run_of_another_size_is_refused_and_the_same_is_used_again(store: Store) -> None:
    before = {path: path.stat().st_mtime_ns for path in store.root.rglob("*.parquet")}
    build(store.root, Size(folders=5, rows=100, tokens=4))
    assert {path: path.stat().st_mtime_ns for path in store.root.rglob("*.parquet")} == before
    with pytest.raises(ValueError, match="holds a run of another size"):
        build(store.root, Size(folders=6, rows=100))


@pytest.mark.parametrize("name", list(PARTS))
def test_every_part_measures(store: Store, name: str) -> None:
    assert PARTS[name](Path(store.root), 5)["seconds"] > 0
