"""`nlac view`: what the page holds, how it holds it, and which episodes of a large run."""

import base64
import hashlib
import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import duckdb
import pytest
from typer.testing import CliRunner, Result

from benchmarks.learning.leak_check import SOURCES, load_cases
from flows.cli.main import app
from schemas.load import PROJECT_ROOT
from storage.sql.views import connect
from storage.store import Store
from tasks.export.view.marks import mark_leaks, shade
from tasks.export.view.overview import LOSS_POINTS, overview
from tasks.export.view.page import HERE, Page, make_page
from tasks.export.view.sample import FIRST, sample
from tasks.text.leaks import find_leaks
from tests.support.committed import commit_rows
from tests.support.rows import episode, improvement, training_steps, transitions
from tests.support.viewed import CRITIC, HOSTILE, LEAKY, POLICY, make_word_tokenizer, view_store

ROOM = 5_000_000


class Elements(HTMLParser):
    """Elements of a page with their attributes, and the texts of its scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.code: list[str] = []
        self.open = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self.open = tag in ("script", "style") and dict(attrs).get("type") != "application/json"
        if self.open:
            self.code.append("")

    def handle_endtag(self, tag: str) -> None:
        self.open = False

    def handle_data(self, data: str) -> None:
        if self.open:
            self.code[-1] += data


@pytest.fixture(scope="module")
def viewed(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("viewed")
    return view_store(folder / "data", make_word_tokenizer(folder / "words"))


@pytest.fixture(scope="module")
def page(viewed: Store) -> Page:
    problems: list[str] = []
    made = make_page(viewed, viewed.runs(), ROOM, problems)
    assert not problems
    return made


def data_of(page: Page) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.html, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def nlac(root: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["view", *words], env={"NLAC_DATA": str(root)})


def test_an_episode_has_all_that_was_made_of_its_steps(page: Page) -> None:
    (found,) = (e for e in data_of(page)["episodes"] if e["episode_id"] == "first/00001/train/00000")
    first, second = found["step"]
    assert first["tokens"] == [["Action:", -0.001], [" guess", -0.5], [" 0", -3]]
    assert first["by"] == ["base", 1, 5, 3, "stop"] and second["next_observation"] == "saw 2"
    (draw,) = first["draw"]
    (target,) = draw["target"]
    assert target["thought"][0] == ["The critique says that nine is too high", True]
    assert target["label"]["trained"][0]["adapter_version"] == CRITIC
    before, after = draw["critique"]
    assert (before["optimal"], after["yes_probability"]) == (False, 0.75)
    assert [future["description"] for future in before["future"]] == ["future 0", "future 1"]
    distilled = next(row for row in draw["refinement"] if row["distil"])
    assert "".join(text for text, _ in distilled["thought_before"]) == LEAKY
    assert any(leaks for _, leaks in distilled["thought_before"])
    assert distilled["trained"][0]["adapter_version"] == POLICY
    assert page.shown == page.episodes == len(data_of(page)["episodes"]) == 12


def test_figures_are_those_of_the_views(viewed: Store, page: Page) -> None:
    figures = data_of(page)["overview"]
    expected = (
        connect(viewed).sql("select run, iteration, success_rate, success_low from learning_curve").fetchall()
    )
    shown = {(r["run"], r["iteration"], r["success_rate"], r["success_low"]) for r in figures["iterations"]}
    assert shown == set(expected) and len(shown) == 4
    assert {(r["changed"], r["leaking"]) for r in figures["iterations"]} == {(1, 2)}
    assert [(r["run"], r["step"]) for r in figures["losses"]] == [
        ("first", list(range(10))),
        ("second", list(range(10))),
    ]


def test_hostile_text_is_data(page: Page) -> None:
    assert page.html.count("<script") == page.html.count("</script>") == 5
    assert not {"\x1b", "\u2028", "\u202e"} & set(page.html)
    shown = HOSTILE.replace("\x1b", "\\x1b").replace("\u2028", "\\u2028").replace("\u202e", "\\u202e")
    first = next(e for e in data_of(page)["episodes"] if e["split"] == "train")["step"][0]
    assert first["observation"] == shown and first["draw"][0]["target"][0]["next_future"] == shown


def test_the_policy_lets_the_pages_own_scripts_run_and_loads_nothing(page: Page) -> None:
    elements = Elements(page.html)
    (policy,) = (
        a["content"] or "" for tag, a in elements.found if a.get("http-equiv") == "Content-Security-Policy"
    )
    assert "default-src 'none'" in policy and "require-trusted-types-for 'script'" in policy
    assert "unsafe" not in policy
    allowed = set(re.findall(r"'sha256-([^']+)'", policy))
    digests = {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in elements.code}
    assert digests == allowed and len(allowed) == 5
    for tag, attributes in elements.found:
        assert not {"src", "style"} & attributes.keys() and tag not in ("link", "img", "iframe"), tag
        assert (attributes.get("href") or "#").startswith("#")
        assert not [name for name in attributes if name.startswith("on")]


def test_every_passage_of_a_planted_leak_is_found_in_its_thought() -> None:
    passages = 0
    for case in load_cases():
        source = SOURCES[case.kind]
        leak = find_leaks(case.thought, privileged=case.privileged, visible=case.visible, source=source)
        for passage in leak.passages:
            pieces = mark_leaks(case.thought, [passage])
            assert "".join(text for text, _ in pieces) == case.thought
            assert [len(text) >= len(passage) // 2 for text, leaks in pieces if leaks], (case.id, passage)
            passages += 1
    assert passages > 50


def test_contractions_and_quotes_are_found_as_they_were_written() -> None:
    assert mark_leaks("So it isn’t nine, and I can't say.", ["it is not nine", "i cannot say"]) == [
        ("So ", False), ("it isn’t nine", True), (", and ", False), ("I can't say", True), (".", False),
    ]  # fmt: skip


def test_tokens_that_share_a_character_make_one_piece() -> None:
    from tokenizers import Tokenizer, decoders, models

    letters = [f"<0x{byte:02X}>" for byte in "é".encode()]
    core = Tokenizer(models.WordLevel({token: n for n, token in enumerate(["a", *letters])}, unk_token="a"))
    core.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    assert shade(core, [0, 1, 2, 0], [-1.0, -0.5, -0.25, -2.0]) == [("a", -1.0), ("é", -0.75), ("a", -2.0)]


def test_a_large_run_is_sampled_by_the_stated_rule(store: Store) -> None:
    for iteration in range(2):
        played = [
            episode(n, iteration=iteration, split=split, task_id=f"{split}/{n % 250}",
                    episode_id=f"trial/{iteration:05d}/{split}/{n:05d}")
            for split in ("train", "eval") for n in range(1000)
        ]  # fmt: skip
        steps = [step for row in played for step in transitions(row)[:1]]
        commit_rows(store, "rollout", iteration, {"episodes": played, "transitions": steps})
    room = 350_000
    made = make_page(store, ["trial"], room, [])
    assert room * 0.95 < len(made.html.encode()) <= room
    shown = data_of(made)["episodes"]
    assert (made.shown, made.episodes) == (len(shown), 4000) and len(shown) > FIRST
    assert f"{made.shown} of 4000 episodes: equally many" in made.html
    groups = Counter((row["iteration"], row["split"]) for row in shown)
    assert len(groups) == 4 and max(groups.values()) - min(groups.values()) <= 1
    tasks = [{r["task_id"] for r in shown if (r["iteration"], r["split"]) == (i, "eval")} for i in range(2)]
    assert len(tasks[0] ^ tasks[1]) <= 1 and len(tasks[0]) > 5, "the same tasks under both iterations"


def test_episodes_with_a_critiqued_step_come_first(store: Store) -> None:
    played = [episode(n, task_id=f"task/{n}") for n in range(9)]
    steps = [step for row in played for step in transitions(row)]
    commit_rows(store, "rollout", 0, {"episodes": played, "transitions": steps})
    orders = []
    for number in (3, 7):
        made = improvement(steps[2 * number], CRITIC)
        commit_rows(store, "critique", 0, {"critiques": made["critiques"]}, attempt=number)
        page = make_page(store, ["trial"], ROOM, [])
        orders.append([row["task_id"] for row in data_of(page)["episodes"]])
    assert [order[0] for order in orders] == ["task/3", "task/7"]
    assert set(orders[0]) == {row.task_id for row in played}


def test_a_giant_episode_is_skipped_and_does_not_end_the_choice() -> None:
    database = duckdb.connect()
    database.execute(
        "create table episodes as select 'e' || n as episode_id, 'trial' as run, 0 as iteration, 'train' as split, "
        "'game' as environment, n::varchar as task_id from range(400) t(n);"
        "create table transitions (episode_id varchar, transition_id varchar);"
        "create table critiques (transition_id varchar)"
    )
    ids: list[str] = []

    def read(wanted: list[str]) -> list[str]:
        ids.extend(wanted)
        return ["x" * (5000 if i == ids[2] else 9) for i in wanted]

    found = sample(database, ["trial"], 1000, read)
    assert (len(found.episodes), found.total) == (100, 400)
    assert all(len(text) == 9 for text in found.episodes) and len(ids) == FIRST


def test_a_long_loss_curve_is_a_few_hundred_means(store: Store) -> None:
    steps = training_steps(1000)
    commit_rows(store, "critic-sft", 0, {"training_steps": steps})
    ((curve),) = overview(connect(store), ["trial"])["losses"]
    assert len(curve["step"]) == 250 <= LOSS_POINTS and curve["step"][:2] == [0, 4]
    assert curve["loss"][0] == pytest.approx(sum(step.loss for step in steps[:4]) / 4)


def test_the_command_writes_the_page_of_the_named_runs(viewed: Store, tmp_path: Path) -> None:
    file = tmp_path / "deep" / "page.html"
    done = nlac(viewed.root, "--run", "second", "--output", str(file))
    assert done.exit_code == 0, done.output
    assert "6 of 6 episodes of 1 run," in done.stdout
    html = file.read_text(encoding="utf-8")
    assert "second/00001/train/00000" in html and "first/00001/train/00000" not in html


def test_what_can_not_be_viewed_is_refused(viewed: Store, tmp_path: Path) -> None:
    unknown = nlac(viewed.root, "--run", "secnd", "--output", str(tmp_path / "x.html"))
    assert unknown.exit_code == 2 and "did you mean 'second'?" in unknown.stderr
    empty = nlac(tmp_path / "nothing")
    assert empty.exit_code == 2 and "begin one with `nlac iterate`" in empty.stderr
    (tmp_path / "file").write_text("")
    blocked = nlac(viewed.root, "--output", str(tmp_path / "file" / "x.html"))
    assert blocked.exit_code == 1 and "--output" in blocked.stderr
    assert list(tmp_path.glob("*.html")) == []


def test_lost_files_are_said(store: Store, tmp_path: Path) -> None:
    row = episode()
    folder = commit_rows(store, "rollout", 0, {"episodes": [row], "transitions": transitions(row)}).path
    (folder / "transitions.parquet").unlink()
    file = tmp_path / "page.html"
    lost = nlac(store.root, "--output", str(file))
    assert lost.exit_code == 3 and "transitions.parquet" in lost.stderr and not file.exists()
    assert nlac(store.root, "--output", str(file), "--allow-missing").exit_code == 0
    assert row.episode_id in file.read_text(encoding="utf-8")


def test_libraries_are_those_that_their_page_and_docs_name() -> None:
    lines = re.findall(
        r"^\| (\S+) \| (\S+ [\d.]+) \| \S+ \| (\S+) \| (\w+) \|$", _vendor("README.md"), re.MULTILINE
    )
    assert {name for name, *_ in lines} == {path.name for path in (HERE / "vendor").glob("*.min.*")}
    licences = (PROJECT_ROOT / "docs" / "licences.md").read_text(encoding="utf-8")
    for name, package, licence, digest in lines:
        assert hashlib.sha256((HERE / "vendor" / name).read_bytes()).hexdigest() == digest, name
        assert f"npm package {package}, unchanged | {licence} |" in licences


def _vendor(name: str) -> str:
    return (HERE / "vendor" / name).read_text(encoding="utf-8")
