"""The page of `nlac view` in headless Chromium: opened from disk, clicked through, by keyboard too."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tasks.chromium import REMEDY, programs
from tasks.export.view.page import make_page
from tests.support.viewed import HOSTILE, make_word_tokenizer, view_store

pytest.importorskip("selenium", reason="needs selenium (pip install -e '.[dev]')")

from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from tests.support.browser import chromium, requested

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

pytestmark = [pytest.mark.slow, pytest.mark.skipif(len(programs()) < 2, reason=REMEDY)]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    store = view_store(folder / "data", make_word_tokenizer(folder / "words"))
    written = folder / "view.html"
    written.write_text(make_page(store, store.runs(), 5_000_000, []).html, encoding="utf-8")
    return written


@pytest.fixture(scope="module")
def browser() -> Iterator["Chrome"]:
    with chromium() as opened:
        yield opened


class Reader:
    """Reads and uses the page as a person would."""

    def __init__(self, browser: "Chrome") -> None:
        self.browser = browser

    def go(self, address: str) -> None:
        """To another address behind #, once its page is drawn."""
        self.browser.execute_async_script(
            "addEventListener('hashchange', () => setTimeout(arguments[1]), { once: true }); "
            "location.hash = arguments[0]", f"#/{address}",
        )  # fmt: skip

    def until(self, holds: Callable[[], Any]) -> None:
        WebDriverWait(self.browser, 20).until(lambda _: holds())

    def texts(self, css: str) -> list[str]:
        return [str(text) for text in self.browser.execute_script(
            "return [...document.querySelectorAll(arguments[0])].map((element) => element.textContent)", css
        )]  # fmt: skip

    def click(self, css: str, number: int = 0) -> None:
        self.browser.find_elements(By.CSS_SELECTOR, css)[number].click()

    def press(self, key: str) -> None:
        self.browser.switch_to.active_element.send_keys(key)

    @property
    def title(self) -> str:
        return self.texts("h1")[0]


@pytest.fixture
def reader(browser: "Chrome", file: Path) -> Iterator[Reader]:
    """A fresh page; afterwards nothing was said on the console, nothing asked for but the file, and no text has run."""
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    browser.get(file.as_uri())
    yield Reader(browser)
    assert browser.get_log("browser") == []
    assert {address.partition("#")[0] for address in requested(browser)} == {file.as_uri()}
    assert browser.title == "nlac view"


def test_the_overview_draws_curves_and_leads_to_an_iterations_episodes(reader: Reader) -> None:
    reader.until(lambda: len(reader.texts(".charts canvas")) == 3)
    assert reader.texts("figcaption")[0].startswith("Success on the eval tasks")
    assert len(reader.texts(".table tbody tr")) == 4
    assert "20% (10% to 90%)" in reader.texts(".table tbody tr")[0]
    reader.click(".runs input")
    reader.until(lambda: len(reader.texts(".table tbody tr")) == 2)
    reader.click(".table tbody tr", 1)
    reader.until(lambda: "Episodes" in reader.title)
    assert len(reader.texts("tbody tr")) == 3
    assert all(text.startswith("second1") for text in reader.texts("tbody tr"))


def test_episodes_are_filtered_sorted_and_walked_in_that_order(reader: Reader) -> None:
    reader.go("episodes")
    assert len(reader.texts("tbody tr")) == 12
    first = [f"{run}{iteration}{split}" for run in ("first", "second") for iteration in (0, 1)
             for split in ("eval", "eval", "train")]  # fmt: skip
    assert all(map(str.startswith, reader.texts("tbody tr"), first)), "as they were played"
    reader.browser.find_element(By.ID, "search").send_keys("ONERROR")
    reader.until(lambda: len(reader.texts("tbody tr")) == 4)
    reader.click("button[data-column=run]")
    reader.until(lambda: reader.texts("th[aria-sort=ascending]") == ["Run ▲"])
    reader.click("button[data-column=run]")
    reader.until(lambda: reader.texts("tbody tr td:first-child") == ["second", "second", "first", "first"])
    reader.browser.find_elements(By.CSS_SELECTOR, "tbody tr")[1].send_keys(Keys.ENTER)
    reader.until(lambda: "second · iteration" in reader.title)
    assert reader.texts(".walk .muted")[0] == "2 of 4"
    reader.press(Keys.ARROW_RIGHT)
    reader.until(lambda: "first · iteration" in reader.title)
    reader.press(Keys.ARROW_LEFT)
    reader.until(lambda: "second · iteration" in reader.title)


def test_a_step_shows_the_whole_chain_and_hostile_text_as_text(reader: Reader) -> None:
    reader.go("episode/first%2F00001%2Ftrain%2F00000")
    shown = HOSTILE.replace("\x1b", "\\x1b").replace("\u2028", "\\u2028").replace("\u202e", "\\u202e")
    assert reader.texts("#step-0 .observation")[0] == shown
    assert reader.texts("main img, main script, main a[href*=example]") == []
    assert reader.texts("#step-0 .tokens span") == ["Action:", " guess", " 0"]
    shades = reader.browser.execute_script(
        "return [...document.querySelectorAll('#step-0 .tokens span')].map((s) => getComputedStyle(s).backgroundColor)"
    )
    assert len(set(shades)) == 3, "the less probable, the darker"
    assert reader.texts(".futures li .text")[:2] == ["future 0", "future 1"]
    assert reader.texts(".critique h4 .chip") == ["not optimal", "optimal, p(optimal) 0.75"]
    assert (reader.texts(".action.diff del")[-1], reader.texts(".action.diff ins")[-1]) == ("9", "5")
    assert "The critique says that nine is too high" in reader.texts("mark.leak")
    assert {"trained policy@00000:p", "trained critic@00000:c"} <= set(reader.texts(".chip.accent"))
    reader.press("x")
    reader.until(lambda: reader.texts("details.draw[open]") == [])
    reader.press("j")
    reader.press("j")
    assert reader.browser.switch_to.active_element.get_attribute("id") == "step-1"


def test_the_same_task_stands_side_by_side(reader: Reader) -> None:
    reader.go("episode/first%2F00000%2Feval%2F00000")
    options = reader.texts(".bar select option")
    assert len(options) == 4 and any("second · iteration 1" in option for option in options)
    wanted = next(n for n, option in enumerate(options) if "second · iteration 1" in option)
    reader.click(".bar select option", wanted)
    reader.until(lambda: reader.title.startswith("Compare"))
    assert reader.texts("#step-0 .spoken .action") == [
        "0 by first 0",
        "0 by firstsecond 01",
    ]
    assert reader.texts("#step-0 ins") == ["second", "1"]
    reader.press("c")
    reader.until(lambda: len(reader.texts(".tasks li")) == 3)


def test_the_keyboard_reaches_every_page_and_the_page_turns_dark(reader: Reader) -> None:
    reader.press("e")
    reader.until(lambda: "Episodes" in reader.title)
    reader.press("/")
    reader.until(lambda: reader.browser.switch_to.active_element.get_attribute("id") == "search")
    reader.press("o")
    assert "Episodes" in reader.title, "typed, not pressed"
    reader.click("h1")
    reader.browser.execute_script("document.activeElement.blur()")
    reader.press("o")
    reader.until(lambda: "2 runs" in reader.title)
    reader.press("?")
    reader.until(lambda: reader.browser.find_element(By.ID, "help").is_displayed())
    reader.press(Keys.ESCAPE)
    colours = "return getComputedStyle(document.body).backgroundColor"
    before = reader.browser.execute_script(colours)
    reader.click("#theme")
    assert reader.browser.execute_script(colours) != before
