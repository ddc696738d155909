"""Chromium without a window, and its driver: where they are, and how they are started. Nothing is downloaded."""

import shutil

PROGRAMS = (("chromium", "chromium-browser", "google-chrome"), ("chromedriver",))
"""The names of the browser, and of its driver."""

INSTALL = "apt-get install chromium chromium-driver"
REMEDY = f"needs Chromium and its driver (Debian: {INSTALL})"

# In a container root has no sandbox of Chromium's, and /dev/shm is small.
FLAGS = ("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu", "hide-scrollbars")


def programs() -> list[str]:
    """Paths of browser and driver; shorter where one is missing."""
    return [path for names in PROGRAMS if (path := next(filter(None, map(shutil.which, names)), None))]
