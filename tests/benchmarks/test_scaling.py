"""The benchmarks of how a stage scales with workers, and of how cost grows."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks.data import growth
from benchmarks.overhead import shards
from benchmarks.overhead.shards import Point

POINT = Point(
    workers=1, items=1000, wait_seconds=0.64, concurrency=64, seconds=12.5, parent_seconds=0.5,
    slowest_shard_seconds=12.0, fastest_shard_seconds=12.0, worker_cpu_seconds=0.4, parent_cpu_seconds=0.1,
    digest="d", machine="m", date="2026-01-01", commit="c", load_before=0.0,
)  # fmt: skip


def test_a_point_says_speed_and_cost_by_item_and_by_shard() -> None:
    told = shards.told(replace(POINT, workers=2, items=2000))
    assert told["items_per_second"] == 160.0 and told["share_of_stated_speed"] == 0.8
    assert told["cpu_milliseconds_per_item"] == 0.25
    assert told["parent_seconds_per_shard"] == 0.25 and told["parent_microseconds_per_item"] == 250.0


def test_the_curve_is_drawn_and_says_how_much_faster_eight_workers_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    points = [POINT, replace(POINT, workers=8, items=7500), replace(POINT, workers=8, items=100)]
    points.append(replace(POINT, wait_seconds=6.4))  # of slower engines, so in another curve
    results, image = tmp_path / "shards.json", tmp_path / "images" / "shards.png"
    results.write_text(json.dumps({"points": [asdict(one) for one in points]}))
    shards.draw(results, image)
    said = "100 items/s a worker: 8 workers do 7.50 times the items per second of one (goal: 7)\n"
    assert capsys.readouterr().out == said
    assert image.read_bytes().startswith(b"\x89PNG")


def test_growth_is_named_by_its_exponent_and_drawn(tmp_path: Path) -> None:
    sizes = (1, 10, 20, 40)
    points = [{"size": float(n), "cost": 5.0 + n**2 if n == 1 else float(n**2)} for n in sizes]
    assert growth.exponent(points) == pytest.approx(2.0), "the first point, which is overhead, does not count"
    results, image = tmp_path / "growth.json", tmp_path / "growth.png"
    results.write_text(json.dumps({"axes": {"items": {"exponent": 2.0, "points": points}}}))
    growth.draw(results, image)
    assert image.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_workers_make_the_table_that_one_makes(tmp_path: Path) -> None:
    one, two = (shards.one_point(tmp_path / str(n), n, 60, 0.001, 8) for n in (1, 2))
    assert one.digest == two.digest and two.workers == 2
    assert two.worker_cpu_seconds > 0 and two.seconds > two.parent_seconds
