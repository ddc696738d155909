"""MiniWoB++ in a real browser: scripted solutions, seeds, time in steps, no network, and browsers that hang."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import psutil
import pytest

from schemas.load import PROJECT_ROOT
from tasks.environments.registry import BUILTIN

if BUILTIN["miniwob"].missing is not None:
    pytest.skip(f"miniwob {BUILTIN['miniwob'].missing}", allow_module_level=True)

from selenium.webdriver import Chrome
from selenium.webdriver.remote.remote_connection import RemoteConnection

from tasks.environments.base import EpisodeFailed, Step, Task
from tasks.environments.miniwob import MiniWoB, pages
from tasks.environments.miniwob.browser import Browser
from tasks.environments.miniwob.observation import read_lines
from tasks.environments.miniwob.pool import Pool, shared_pool
from tasks.environments.miniwob.solutions import SOLUTIONS
from tasks.environments.miniwob.validation import faults, play_solution
from tests.support.browser import chromium
from tests.support.local_http import answering
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow
SEEDS = 4


def drivers() -> set[int]:
    """Ids of the drivers that this process has started."""
    found = psutil.Process().children(recursive=True)
    return {p.pid for p in found if p.name() == "chromedriver" and p.status() != psutil.STATUS_ZOMBIE}


def play(game: MiniWoB, task: Task, *actions: str) -> list[Step]:
    """The opening, as a step, and what follows; the browser is given back."""

    async def run() -> list[Step]:
        steps = [Step(await game.reset(task))]
        for action in actions:
            steps.append(await game.step(action))
        await game.close()
        return steps

    return asyncio.run(run())


def one_page(name: str, **options: int) -> tuple[MiniWoB, Task]:
    game = MiniWoB(pages=[name], browsers=2, **options)
    return game, game.tasks("eval")[0]


@pytest.mark.parametrize("seeds", [1, pytest.param(SEEDS, marks=pytest.mark.long)])
def test_scripted_solutions_that_read_the_observation_alone_earn_reward_one(seeds: int) -> None:
    assert len(SOLUTIONS) >= 25 and set(SOLUTIONS) <= set(pages.PAGES) and len(pages.PAGES) >= 75
    game = MiniWoB(pages=list(SOLUTIONS), browsers=2)

    async def solve_all() -> list[Step]:
        tasks = game.tasks("eval")[: seeds * len(SOLUTIONS)]
        assert len({task.task_id.partition("/")[0] for task in tasks}) == len(SOLUTIONS)
        return await asyncio.gather(*(play_solution(game, task) for task in tasks))

    ended = asyncio.run(solve_all())
    assert len(ended) == seeds * len(SOLUTIONS)
    assert all(step.success and step.done and step.reward == 1.0 and step.valid for step in ended)


def test_random_episodes_played_again_in_a_fresh_page_are_the_same() -> None:
    chosen = ["email-inbox", "social-media", "choose-date", "navigate-tree", "tic-tac-toe"]
    assert faults(MiniWoB(pages=chosen, browsers=2)) == []


def test_the_seed_makes_the_page_and_no_split_shares_one() -> None:
    game, task = one_page("read-table")
    again, other = MiniWoB(pages=["read-table"], browsers=2), game.tasks("train")[0]
    assert play(game, task) == play(again, task) != play(game, other)
    seeds = [task.seed for split in ("train", "validation", "eval") for task in game.tasks(split)]
    assert len(seeds) == len(set(seeds)) == 50 + 10 + 10


def test_a_number_names_the_same_element_as_long_as_it_lives() -> None:
    game, task = one_page("choose-date")
    first, opened, turned = (
        list(read_lines(step.observation)) for step in play(game, task, "click 2", "click 4")
    )
    before = {line.ref: (line.role, line.text) for line in first}
    assert {line.ref: (line.role, line.text) for line in opened if line.ref in before} == before
    assert [line.text for line in opened if line.ref > max(before)][:2] == ["Prev", "Next"]
    assert min(line.ref for line in turned if line.text == "1") > max(line.ref for line in opened), (
        "days of another month"
    )


def test_the_time_limit_counts_actions_and_losing_by_it_is_done() -> None:
    game, task = one_page("click-test", steps=3)
    *before, last = play(game, task, "click 99", "press Tab", "nonsense")
    assert [step.valid for step in before] == [True, False, True] and not any(step.done for step in before)
    assert last.done and not last.truncated and not last.success and last.reward == -1.0 and not last.valid
    assert last.observation.splitlines()[1:] == [
        "Done: click 99 (refused); press Tab; nonsense (refused)",
        "The episode is over, the time is up. Reward -1.",
    ]


@pytest.mark.parametrize(("waits", "reward"), [(2, 1.0), (0, 0.0)])
def test_a_page_that_measures_time_measures_actions(waits: int, reward: float) -> None:
    game, task = one_page("button-delay")
    steps = play(game, task, "click 1", *["press Tab"] * waits, "click 2")
    assert steps[-1].done and steps[-1].reward == reward


def test_pages_reach_no_network_though_a_server_listens_on_this_machine() -> None:
    with answering(lambda _: (200, b"<p>reached</p>")) as server:
        tries = f"""
        const url = {server.url!r};
        const wait = [fetch(url + '/fetch', {{mode: 'no-cors'}}).then(() => 'answered', () => 'refused')];
        for (const [tag, property] of [['img', 'src'], ['script', 'src'], ['iframe', 'src'], ['link', 'href']]) {{
          const element = document.createElement(tag);
          if (tag === 'link') element.rel = 'stylesheet';
          wait.push(new Promise((done) => {{ element.onload = element.onerror = done; }}));
          element[property] = url + '/' + tag;
          document.body.append(element);
        }}
        const socket = new WebSocket(url.replace('http', 'ws') + '/socket');
        wait.push(new Promise((done) => {{ socket.onopen = socket.onerror = done; }}));
        navigator.sendBeacon(url + '/beacon', 'x');
        return (await Promise.all(wait))[0];
        """
        page = pages.find_page("click-test").as_uri()
        with chromium() as ordinary:
            ordinary.get(server.url)
            assert ordinary.execute_script(tries) == "answered"
        assert {"GET /fetch", "GET /img", "GET /script", "GET /iframe", "GET /link"} <= set(server.asked)
        server.asked.clear()
        browser = Browser(30)
        try:
            browser.use(lambda driver: driver.get(page))
            assert browser.use(lambda driver: driver.execute_script(tries)) == "refused"
            for leave in (
                "location.href = arguments[0]",
                "window.open(arguments[0])",
                "document.body.innerHTML = ''",
            ):
                browser.use(lambda driver, leave=leave: driver.execute_script(leave, f"{server.url}/left"))
            browser.use(lambda driver: driver.get("about:blank"))
            with pytest.raises(EpisodeFailed, match="net::ERR"):
                browser.use(lambda driver: driver.get(server.url))
        finally:
            browser.kill()
        assert server.asked == []


@pytest.fixture
def endless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of pages with one whose button never returns."""
    source = pages.folder()
    for name in ("core", "miniwob"):
        (tmp_path / name).mkdir()
    for path in (source / "core").glob("*.[cj]s*"):
        shutil.copyfile(path, tmp_path / "core" / path.name)
    test = (source / "miniwob" / "click-test.html").read_text(encoding="utf-8")
    assert "core.endEpisode(1.0, true)" in test
    written = test.replace("core.endEpisode(1.0, true)", "for (;;);")
    (tmp_path / "miniwob" / "endless.html").write_text(written, encoding="utf-8")
    monkeypatch.setattr(pages, "folder", lambda: tmp_path)
    return tmp_path


def test_a_page_that_loops_for_ever_ends_its_episode_and_its_browser(endless: Path) -> None:
    seconds = 1200  # enough to start on any machine, and a pool that no other test shares
    game = MiniWoB(pages=["endless"], browsers=1, seconds=seconds)
    task = game.tasks("eval")[0]
    before = drivers()

    def wait_less(driver: Chrome) -> None:
        config = cast(RemoteConnection, driver.command_executor).client_config
        assert config.timeout == seconds
        config.timeout = 3

    async def run() -> None:
        pool = shared_pool(1, seconds)
        browser = await pool.take()
        pool.give_back(browser)
        await game.reset(task)
        (hung,) = drivers() - before
        browser.use(wait_less)
        said = r"miniwob/endless: the browser failed, or did not answer .*read timeout=3\b"
        with pytest.raises(EpisodeFailed, match=said):
            await game.step("click 1")
        assert not psutil.pid_exists(hung) or psutil.Process(hung).status() == psutil.STATUS_ZOMBIE
        assert "Click the button." in await game.reset(task), "another browser takes its place"
        (fresh,) = drivers() - before
        assert fresh != hung
        await game.close()

    asyncio.run(run())


def test_episodes_wait_for_a_browser_and_one_that_is_cancelled_loses_none() -> None:
    pool, given = Pool(2, 30), []

    async def episode(number: int) -> None:
        browser = await pool.take()
        given.append(browser)
        await asyncio.sleep(0)
        pool.give_back(browser)

    async def run() -> None:
        held = [await pool.take() for _ in range(2)]
        waiting = [asyncio.create_task(episode(number)) for number in range(6)]
        await asyncio.sleep(0)
        assert not given, "there are two browsers"
        waiting[0].cancel()
        pool.give_back(held[0])
        waiting[1].cancel()  # its turn has come, but it does not know yet
        pool.give_back(held[1])
        await asyncio.gather(*waiting, return_exceptions=True)
        assert len(given) == 4 and set(given) == set(held)
        assert {await pool.take(), await pool.take()} == set(held)

    asyncio.run(run())


def test_more_episodes_than_browsers_play_at_once() -> None:
    before = drivers()
    game = MiniWoB(pages=["enter-text"], browsers=2)

    async def run() -> tuple[list[Step], set[int]]:
        ended = await asyncio.gather(*(play_solution(game, task) for task in game.tasks("train")[:8]))
        return ended, drivers()

    ended, running = asyncio.run(run())
    assert all(step.success for step in ended) and len(running - before) <= 2


def test_an_episode_that_is_cancelled_gives_its_browser_back(endless: Path) -> None:
    game = MiniWoB(pages=["endless"], browsers=1, seconds=600)  # more than the test has
    task = game.tasks("eval")[0]

    async def run() -> str:
        await game.reset(task)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(game.step("click 1"), 1)
        return await game.another().reset(task)

    assert "Click the button." in asyncio.run(asyncio.wait_for(run(), 300))


def test_killing_the_program_leaves_no_browser(tmp_path: Path) -> None:
    code = (
        "import asyncio, psutil\n"
        "from tasks.environments.miniwob import MiniWoB\n"
        "game = MiniWoB(pages=['click-test'])\n"
        "asyncio.run(game.reset(game.tasks('eval')[0]))\n"
        "print(*(p.pid for p in psutil.Process().children(recursive=True)), flush=True)\n"
        "input()\n"
    )
    program = subprocess.Popen(
        [sys.executable, "-c", code], cwd=PROJECT_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},  # profiles stay
    )  # fmt: skip
    assert program.stdout is not None
    started = [int(word) for word in program.stdout.readline().split()]
    assert len(started) > 3
    program.send_signal(signal.SIGKILL)
    program.communicate()
    wait_until(lambda: not list(alive(started)), 20, "the browser's end")


def alive(pids: list[int]) -> Iterator[int]:
    for pid in pids:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                yield pid
        except psutil.NoSuchProcess:
            continue
