"""Makes the pictures of docs/view.md: two small runs, their page, and what a browser shows of it.

python docs/screenshots.py [--data DIR]

The runs are a shortened proof of learning on FrozenLake and a number game of scripted players, whose thoughts leak.
They take some minutes and stay in build/screenshots, so a second call only takes the pictures. Needs Chromium and its
driver.
"""

import argparse
import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from schemas.config import Config  # noqa: E402
from schemas.load import load_config  # noqa: E402
from storage.store import Store  # noqa: E402
from tasks.environments.frozen_lake.word_model import make_word_model  # noqa: E402
from tasks.export.view.page import make_page  # noqa: E402
from tasks.imports import allow_imports  # noqa: E402
from tasks.pipeline.iterations import next_iteration, run_iteration  # noqa: E402
from tests.support.browser import chromium  # noqa: E402
from tests.support.iterations import small_config  # noqa: E402
from tests.support.tiny import make_tiny_checkpoint  # noqa: E402

BUILD, IMAGES = ROOT / "build" / "screenshots", ROOT / "docs" / "images"
ITERATIONS = {"lake": 8, "number-game": 2}
LAKE: dict[str, dict[str, Any]] = {
    "evaluation": {"every": 1, "episodes": 24},
    "rollout": {"episodes": 64},
    "replay": {"transitions": 1920},
    "improvement": {"states": 256, "futures": 4},
}
"""What shortens configs/proofs/frozen_lake.yaml."""


def lake() -> Config:
    """FrozenLake, shortened."""
    content = load_config(ROOT / "configs" / "proofs" / "frozen_lake.yaml", {"run": "lake"}).model_dump()
    content["model"]["name"] = str(make_word_model(BUILD / "word_model", seed=0))
    for section, changes in LAKE.items():
        content[section] |= changes
    return Config.model_validate(content)


def number_game() -> Config:
    """GuessTheNumber by scripted players."""
    allow_imports(["tests"])
    improvement = {"states": 6, "futures": 2, "rounds": 2}
    config = small_config(make_tiny_checkpoint(BUILD / "tiny_model"), improvement=improvement)
    return config.model_copy(update={"run": "number-game"})


def run_all(store: Store) -> None:
    """Compute what is not there yet."""
    made: dict[str, Callable[[], Config]] = {"lake": lake, "number-game": number_game}
    for run, count in ITERATIONS.items():
        config = made[run]() if next_iteration(store, run) < count else None
        while config is not None and next_iteration(store, run) < count:
            asyncio.run(run_iteration(store, config))


def take(browser: Chrome, page: Path) -> None:
    """Take the pictures of a page."""

    def shot(name: str, shown: str) -> None:
        WebDriverWait(browser, 20).until(lambda b: b.find_elements(By.CSS_SELECTOR, shown))
        browser.save_screenshot(str(IMAGES / f"view_{name}.png"))

    def click(css: str, number: int = 0) -> None:
        browser.find_elements(By.CSS_SELECTOR, css)[number].click()

    def open_first_with(css: str, rows: str) -> None:
        """Open the first episode that shows something."""
        for number in range(len(browser.find_elements(By.CSS_SELECTOR, rows))):
            click(rows, number)
            WebDriverWait(browser, 20).until(lambda b: b.find_elements(By.CSS_SELECTOR, "article.step"))
            if browser.find_elements(By.CSS_SELECTOR, css):
                return
            click("header nav a", 2)

    browser.get(page.as_uri())
    shot("overview", ".charts figure:last-child canvas")
    click("header nav a", 2)
    click("button[data-column=changed]")
    shot("episodes", "tbody tr")
    open_first_with("#step-0:has(.tokens):has(ins)", "tbody tr")
    shot("episode", ".draw[open] ins")
    click("header nav a", 2)
    click("button[data-column=leaked]")
    open_first_with(".corrected", "tbody tr")
    browser.execute_script("document.querySelector('.corrected').closest('.round').scrollIntoView()")
    browser.execute_script("scrollBy(0, -70)")
    shot("leak", "mark.leak")
    click("header nav a", 3)
    click(".tasks a")
    click("#theme")
    shot("compare", ".even .spoken")


def main() -> None:
    """Make the pictures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="a data root to take instead of the two runs")
    given: Path | None = parser.parse_args().data
    store = Store(given or BUILD / "data")
    if given is None:
        run_all(store)
    file = BUILD / "view.html"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(make_page(store, store.runs(), 5_000_000, []).html, encoding="utf-8")
    with chromium(1360, 900) as browser:
        take(browser, file)


if __name__ == "__main__":
    main()
