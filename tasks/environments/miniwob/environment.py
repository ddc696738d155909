"""The environment: one episode on one page, in a browser of its own."""

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from selenium.webdriver import Chrome

from schemas.rows import Split
from tasks.environments.base import EpisodeFailed, Step, Task
from tasks.environments.miniwob.actions import ACTION_FORMAT, LegalActions, read_action
from tasks.environments.miniwob.browser import Browser
from tasks.environments.miniwob.observation import write_observation
from tasks.environments.miniwob.page import act, open_page
from tasks.environments.miniwob.pages import PAGES, core_script, find_page
from tasks.environments.miniwob.pool import shared_pool

T = TypeVar("T")

_SHARES: dict[Split, int] = {"train": 1, "validation": 5, "eval": 5}
"""A split has this part of `episodes`."""


class MiniWoB:
    """Tasks on the pages of MiniWoB++ (Liu et al. 2018). An action is a click, a text, a choice, a key, or scrolling.

    The reward is the benchmark's without its discount for time, `WOB_RAW_REWARD_GLOBAL`: from -1 to 1, at the end.
    Success is the full reward, 1. A page's clock goes on with each action alone, refused ones too; after `steps`
    actions the benchmark's own time limit ends the episode with reward -1, as done.

    Args:
        pages: names of the package's pages; by default `pages.PAGES`.
        episodes: training tasks of each page; a fifth as many validate, and a fifth as many evaluate.
        steps: actions until time is up.
        browsers: that run at once in this process; an episode holds one, and others wait.
        seconds: for an answer of a browser; without one by then it is killed, and its episode fails.

    Raises:
        ValueError: the package has no such page, or a number is too small.
        ImportError: the package is not installed; names the command.
    """

    templates: Mapping[str, Path] = {}
    replayable = True
    markov = True
    action_format = ACTION_FORMAT

    def __init__(
        self,
        pages: Sequence[str] | None = None,
        episodes: int = 50,
        steps: int = 20,
        browsers: int = 4,
        seconds: float = 30.0,
    ) -> None:
        for option, value, least in (
            ("episodes", episodes, 5),
            ("steps", steps, 1),
            ("browsers", browsers, 1),
        ):
            if value < least:
                raise ValueError(f"{option} is {value}; it must be {least} or more")
        self._pages = {name: find_page(name) for name in (pages or PAGES)}
        self._episodes, self._steps = episodes, steps
        self._limits = browsers, seconds
        self._browser: Browser | None = None
        self.files = {path.name: path for path in (*self._pages.values(), core_script())}
        self.name = f"miniwob/{next(iter(self._pages))}" if len(self._pages) == 1 else "miniwob"
        self.instructions = (
            "You use a web page to do a task. Each line shows an element of the page: its number, its kind, its text, "
            f"and after = what it holds. After {steps} actions the task has failed."
        )

    def tasks(self, split: Split) -> Sequence[Task]:
        count = self._episodes // _SHARES[split]
        return [_task(page, split, number) for number in range(count) for page in self._pages]

    async def reset(self, task: Task) -> str:
        await self.close()
        page = self._pages[task.task_id.split("/")[0]]
        mode = "test" if task.split == "eval" else "train"
        self._past: list[str] = []
        self._browser = await shared_pool(*self._limits).take()
        seen = await self._use(partial(open_page, page=page, seed=task.seed, mode=mode, steps=self._steps))
        return self._look(seen)

    async def step(self, action: str) -> Step:
        legal = action in self.legal_actions(self._seen)
        page, done = await self._use(partial(act, action=read_action(action) if legal else None))
        self._past.append(action if done else f"{action} (refused)")
        seen = self._look(page)
        if not page["done"]:
            return Step(seen, valid=done)
        await self.close()
        reward = float(page["reward"])
        return Step(seen, reward=reward, done=True, success=reward == 1.0, valid=done)

    def _look(self, page: Mapping[str, Any]) -> str:
        self._seen = write_observation(page, self._past)
        return self._seen

    async def _use(self, work: Callable[[Chrome], T]) -> T:
        """Do something in the episode's browser, in a thread."""
        if self._browser is None:
            raise EpisodeFailed(f"{self.name}: no episode is being played; call reset")
        try:
            return await asyncio.to_thread(self._browser.use, work)
        except BaseException as error:
            self._browser.kill()  # its call may still be running
            await self.close()
            if isinstance(error, EpisodeFailed):
                raise EpisodeFailed(f"{self.name}: {error}") from error
            raise

    async def close(self) -> None:
        """Give the browser back; an episode that was played to its end has done so."""
        browser, self._browser = self._browser, None
        if browser is not None:
            shared_pool(*self._limits).give_back(browser)

    def legal_actions(self, observation: str) -> Sequence[str]:
        """All clicks, choices and scrolls, and texts that the task names; it contains every other text too."""
        return LegalActions(observation)

    def another(self) -> "MiniWoB":
        """A new instance with the same options."""
        return MiniWoB(list(self._pages), self._episodes, self._steps, *self._limits)

    def validate(self) -> list[str]:
        """Scripted solutions earn reward 1, and random episodes are the same when played twice."""
        from tasks.environments.miniwob.validation import faults

        return faults(self)


def _task(page: str, split: Split, number: int) -> Task:
    task_id = f"{page}/{split}/{number:04d}"
    return Task(task_id, split, int.from_bytes(hashlib.sha256(task_id.encode()).digest()[:4], "big"))
