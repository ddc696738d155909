"""Chromium without a window, steered by its own driver. Selenium downloads nothing: both programs must be there."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from selenium.webdriver import Chrome, ChromeOptions, ChromeService

from tasks.chromium import FLAGS, programs


@contextmanager
def chromium(width: int = 1360, height: int = 1000) -> Iterator[Chrome]:
    """A browser, for as long as the block lasts.

    Args:
        width: of the window, pixels.
        height: of the window, pixels.
    """
    browser, driver = programs()
    options = ChromeOptions()
    options.binary_location = browser
    for flag in FLAGS:
        options.add_argument(f"--{flag}")
    options.add_argument(f"--window-size={width},{height}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    opened = Chrome(options=options, service=ChromeService(driver))
    try:
        yield opened
    finally:
        opened.quit()


def requested(browser: Chrome) -> list[str]:
    """Addresses asked for since the last call."""
    events = (json.loads(entry["message"])["message"] for entry in browser.get_log("performance"))
    return [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
