"""A task's page in a browser: opened from its seed, acted upon, looked at."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from selenium.common.exceptions import ElementNotInteractableException, MoveTargetOutOfBoundsException
from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from tasks.environments.miniwob.actions import Action
from tasks.environments.miniwob.browser import ASIDE

STEP_MS = 1000
"""Time that passes on the page's clock while it opens, and with each action."""

LOAD_S = 20
"""Within which a page must have loaded."""

_KEYS = {"ArrowUp": Keys.ARROW_UP, "ArrowDown": Keys.ARROW_DOWN, "ArrowLeft": Keys.ARROW_LEFT,
         "ArrowRight": Keys.ARROW_RIGHT, "PageUp": Keys.PAGE_UP, "PageDown": Keys.PAGE_DOWN}  # fmt: skip

# The page ends the episode itself when its time is up, as the benchmark defines: reward -1, 'timed out'.
_BEGIN = """
const [seed, mode, limit, step] = arguments;
core.setDataMode(mode);
core.EPISODE_MAX_TIME = limit;
Math.seedrandom(seed);
core.startEpisodeReal();
await nlac.pass(step);
return nlac.look();
"""
_IS_LOADED = "return document.readyState === 'complete' && location.pathname.endsWith(arguments[0]);"
_GO_ON = "await nlac.pass(arguments[0]); return nlac.look();"
_POINT = """
if (arguments[1]) await nlac.settle();
const element = nlac.element(arguments[0]);
element.scrollIntoView({ block: 'nearest', inline: 'nearest', behavior: 'instant' });
const box = element.getBoundingClientRect();
const shares = [0.5, 0.25, 0.75, 0.1, 0.9];
for (const down of shares) {
  for (const along of shares) {
    const point = [Math.floor(box.x + along * box.width), Math.floor(box.y + down * box.height)];
    if (element.contains(document.elementFromPoint(...point))) return point;
  }
}
return [Math.floor(box.x + box.width / 2), Math.floor(box.y + box.height / 2)];
"""
_FOCUS = """
const element = nlac.element(arguments[0]);
element.focus();
if (element.isContentEditable) getSelection().selectAllChildren(element);
else element.select();
return element.type;
"""
_SELECT = """
const element = nlac.element(arguments[0]);
const tidy = (text) => text.replace(/\\s+/g, ' ').replace(/"/g, "'").trim();
const option = [...element.options].find((one) => tidy(one.text) === arguments[1]);
if (!option) return false;
element.focus();
option.selected = true;
for (const event of ['input', 'change']) element.dispatchEvent(new Event(event, { bubbles: true }));
return true;
"""
_SCROLL = """
const element = nlac.element(arguments[0]);
const leap = element.tagName === 'TEXTAREA' ? element.scrollHeight / 4 : 0; // its text is seen without scrolling
element.scrollBy({ top: arguments[1] * Math.max(leap, element.clientHeight * 0.9), behavior: 'instant' });
"""


def open_page(driver: Chrome, page: Path, seed: int, mode: str, steps: int) -> Mapping[str, Any]:
    """Load a page and begin its episode.

    Args:
        driver: of the browser.
        page: the package's HTML file.
        seed: decides all that the page draws.
        mode: train or test; a few pages draw from other distributions in `test`.
        steps: actions until time is up.

    Returns:
        What `nlac.look()` of elements.js returns.
    """
    pointer = ActionChains(driver, duration=0)
    pointer.w3c_actions.pointer_action.move_to_location(*ASIDE)
    driver.get("about:blank")
    pointer.perform()  # away from the page, where the last one left it
    driver.get(page.as_uri())
    # On a busy machine the driver returns before the page's own scripts have run.
    WebDriverWait(driver, LOAD_S, poll_frequency=0.02).until(
        lambda of: of.execute_script(_IS_LOADED, page.name)
    )
    seen: Mapping[str, Any] = driver.execute_script(_BEGIN, str(seed), mode, (steps + 1) * STEP_MS, STEP_MS)
    return seen


def act(driver: Chrome, action: Action | None) -> tuple[Mapping[str, Any], bool]:
    """Do an action and let time pass.

    Returns:
        What `nlac.look()` returns, and whether the action could be done; None can't.
    """
    done = False
    if action is not None:
        try:
            done = _do(driver, action)
        except (MoveTargetOutOfBoundsException, ElementNotInteractableException):
            done = False
    seen: Mapping[str, Any] = driver.execute_script(_GO_ON, STEP_MS)
    return seen, done


def _do(driver: Chrome, action: Action) -> bool:
    chain = ActionChains(driver, duration=0)
    match action.verb:
        case "click":
            # First the pointer comes, because a page may change what it is over. Then a click where the element can be
            # seen; what lies above all of it takes the click, as it would a person's.
            for hovers in (False, True):
                pointer = ActionChains(driver, duration=0)
                place = driver.execute_script(_POINT, action.ref, hovers)
                pointer.w3c_actions.pointer_action.move_to_location(*place)
                (pointer.click() if hovers else pointer).perform()
        case "type":
            kind = driver.execute_script(_FOCUS, action.ref)
            chain.send_keys(action.text.replace(" ", "") if kind == "time" else action.text).perform()
        case "select":
            return bool(driver.execute_script(_SELECT, action.ref, action.text))
        case "scroll":
            driver.execute_script(_SCROLL, action.ref, 1 if action.text == "down" else -1)
        case _:
            chain.send_keys(_KEYS.get(action.text) or getattr(Keys, action.text.upper())).perform()
    return True
