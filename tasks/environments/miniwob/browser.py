"""A browser for one episode at a time: it reaches no network, and one that does not answer is killed and replaced."""

import os
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Callable
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TypeVar, cast

import psutil
from selenium.common.exceptions import WebDriverException
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.remote.remote_connection import RemoteConnection
from urllib3.exceptions import HTTPError

from tasks.chromium import FLAGS, REMEDY, programs
from tasks.environments.base import EpisodeFailed

T = TypeVar("T")

WINDOW = "600,600"  # pixels; a task takes 160 by 210 of them
ASIDE = (300, 400)  # where the pointer touches no task
SCRIPTS = tuple(Path(__file__).parent / name for name in ("clock.js", "elements.js"))

# No name has an address, and whatever has one is asked for by a proxy that is not there; this machine too.
OFFLINE = (
    "host-resolver-rules=MAP * ~NOTFOUND",
    "proxy-server=http://127.0.0.1:9",
    "proxy-bypass-list=<-loopback>",
    "force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "disable-quic",
    "disable-background-networking",
    "disable-component-update",
    "disable-sync",
    "no-pings",
)
BLOCKED = [f"{scheme}://*" for scheme in ("http", "https", "ws", "wss", "ftp")]
# The driver ends when this process does, even by SIGKILL: then its input is at an end. Chromium ends with the driver.
_WITH_US = '"$0" "$@" </dev/null & read -r _; kill -9 $!'


class _Driver(ChromeService):
    """Starts the driver beside a shell that outlives this process for as long as it takes to end it."""

    def __init__(self, driver: str, home: str) -> None:
        path = os.environ.get("PATH", os.defpath)
        super().__init__("/bin/sh", env={"PATH": path, "HOME": home, "LANG": "en_US.UTF-8", "TZ": "UTC"})
        self._driver = driver

    def command_line_args(self) -> list[str]:
        return ["-c", _WITH_US, self._driver, *super().command_line_args()]


class Browser:
    """Chromium, started when it is first used, and again after it was killed.

    Args:
        seconds: time for an answer; without one by then it is killed.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = Lock()  # a call that was given up goes on until its browser is dead
        self._running: Chrome | None = None
        self._end: Callable[[], object] = lambda: None

    def use(self, work: Callable[[Chrome], T]) -> T:
        """Do something in the browser.

        Raises:
            EpisodeFailed: it could not be started, did not answer or broke; it is killed.
        """
        with self._lock:
            try:
                if self._running is None:
                    self._running = self._start()
                return work(self._running)
            except (WebDriverException, HTTPError, OSError) as error:
                self.kill()
                said = (str(error).splitlines() or [""])[0]
                raise EpisodeFailed(
                    f"the browser failed, or did not answer within {self._seconds:g} s, and was killed: "
                    f"{type(error).__name__}: {said}"
                ) from error

    def kill(self) -> None:
        """End its processes and remove its files. It can be used again."""
        self._running = None
        self._end()

    def _start(self) -> Chrome:
        found = programs()
        if len(found) < 2:
            raise FileNotFoundError(REMEDY)
        browser, driver = found
        home = tempfile.mkdtemp(prefix="nlac-browser-")
        service = _Driver(driver, home)
        self._end = weakref.finalize(self, _end, service, home)
        options = ChromeOptions()
        options.binary_location = browser
        own = (f"user-data-dir={home}/profile", f"window-size={WINDOW}", "lang=en-US", "no-first-run")
        for flag in (*FLAGS, *OFFLINE, *own, "remote-debugging-pipe"):
            options.add_argument(f"--{flag}")
        opened = Chrome(options=options, service=service)
        # This ends a page that loops for ever. The driver's own limits do not.
        cast(RemoteConnection, opened.command_executor).client_config.timeout = self._seconds
        for command, given in (
            ("Network.enable", {}),
            ("Network.setBlockedURLs", {"urls": BLOCKED}),
            ("Emulation.setTimezoneOverride", {"timezoneId": "UTC"}),
            ("Page.addScriptToEvaluateOnNewDocument", {"source": _scripts()}),
        ):
            opened.execute_cdp_cmd(command, given)
        return opened


@cache
def _scripts() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in SCRIPTS)


def _end(service: ChromeService, home: str) -> None:
    """Kill the shell, the driver, Chromium and its children, by their ids."""
    process: subprocess.Popen[bytes] | None = service.process
    if process is not None:
        try:
            shell = psutil.Process(process.pid)
            processes = [*shell.children(recursive=True), shell]
        except psutil.NoSuchProcess:
            processes = []
        for one in processes:
            try:
                one.kill()
            except psutil.NoSuchProcess:
                continue
        process.wait()
    shutil.rmtree(home, ignore_errors=True)
