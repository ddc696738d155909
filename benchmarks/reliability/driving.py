"""Keeps a run going by what a user would do, kills by schedule, and notes what comes of it.

What a user would do: run the iteration again where it has stopped, and `nlac up` where the stack is down
(`benchmarks.reliability.ways`). All that is known of the run is read from its files, so nothing depends on Prefect.
"""

import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median

import psutil

from benchmarks.reliability.results import Kill, note_kill, read_kills
from benchmarks.reliability.schedule import AT_ONCE, Planned, planned
from benchmarks.reliability.victims import kill_one, reap, victims
from benchmarks.reliability.ways import Way
from schemas.config import Config
from schemas.load import PROJECT_ROOT
from storage.store import Store
from tasks.pipeline.registry import stages_of

POLL_SECONDS = 0.2
PATIENCE_SECONDS = 300.0
"""A run that commits nothing for so long stands still."""

FIRST_GUESS = 8.0  # seconds between two commits, while none have been seen


class Standstill(Exception):
    """The run stands still, also after its stack was stopped and started."""


@dataclass
class Driver:
    """One run under fire.

    Attributes:
        store: its data.
        config: its configuration.
        way: runs its iterations.
        kinds: of victims.
        seed: of the kills.
        wanted: how many kills.
        notes: file with a line for each kill.
        at_once: probability that a kill does not wait until the one before is recovered from.
        gaps: seconds between two commits with no kill in between, so far.
    """

    store: Store
    config: Config
    way: Way
    kinds: Sequence[str]
    seed: str
    wanted: int
    notes: Path
    at_once: float = AT_ONCE
    gaps: list[float] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    open: list[tuple[Kill, float]] = field(default_factory=list)  # not recovered from yet, and when
    watch: subprocess.Popen[bytes] | None = None
    commits: int = 0
    last_commit: float = 0.0
    last_event: float = 0.0  # commit or kill
    moved: float = 0.0  # commit, kill, or the stack's start
    looked: float = 0.0  # when
    waited: float = 0.0  # of the next kill's wait
    since: int = 0  # commits since the last kill

    def drive(self, until: float) -> bool:
        """Go on until all kills are done and the iteration of the last one is finished.

        Args:
            until: monotonic seconds at which it stops in any case.

        Returns:
            whether it is done; else it goes on when it is called again.

        Raises:
            Standstill: nothing helps.
        """
        self.kills = read_kills(self.notes)
        self.commits = self._committed()
        self.last_commit = self.last_event = self.moved = self.looked = time.monotonic()
        while time.monotonic() < until:
            self._look()
            if len(self.kills) >= self.wanted and not self.open and self._finished():
                return True
            self._keep_going()
            if len(self.kills) < self.wanted:
                self._kill_if_due(planned(self.seed, len(self.kills), self.kinds, self.at_once))
            reap()
            time.sleep(POLL_SECONDS)
        return False

    def _committed(self) -> int:
        """Stages committed so far, over all iterations."""
        run = self.config.run
        return sum(len(self.store.current(run, n).stages) for n in self.store.iterations(run))

    def _finished(self) -> bool:
        """Whether no iteration is under way."""
        begun = self.store.iterations(self.config.run)
        return bool(begun) and all(map(self._is_finished, begun))

    def _is_finished(self, iteration: int) -> bool:
        return self.store.current(self.config.run, iteration).state == "finished"

    def _next_stage(self) -> tuple[int, str]:
        """The iteration that is under way, or the next, and the first of its stages that is not committed."""
        run = self.config.run
        numbers = self.store.iterations(run)
        unfinished = [n for n in numbers if not self._is_finished(n)]
        number = unfinished[0] if unfinished else len(numbers)
        done = self.store.current(run, number).stages
        return number, next((s for s in stages_of(self.config, number) if s not in done), "the end")

    def _look(self) -> None:
        """Note commits, and what has been recovered from."""
        now, commits = time.monotonic(), self._committed()
        if commits == self.commits and not any(self._is_finished(kill.iteration) for kill, _ in self.open):
            return
        if self.last_event == self.last_commit and commits > self.commits:
            self.gaps.append(now - self.last_commit)
        self.since += commits - self.commits
        self.commits, self.last_commit, self.last_event, self.moved = commits, now, now, now
        for kill, when in self.open:
            kill.seconds = round(now - when, 1)
            self._note(kill)
        self.open.clear()
        self.waited = 0.0

    def _note(self, kill: Kill) -> None:
        note_kill(self.notes, kill)
        self.kills = read_kills(self.notes)
        said = (
            "killed" if kill.seconds is None else f"{kill.seconds} s later a stage was committed; killed was"
        )
        where = f"iteration {kill.iteration}, {kill.stage}"
        print(f"{kill.number + 1}/{self.wanted} {said}: {kill.victim} ({where})", flush=True)

    def _keep_going(self) -> None:
        """Start the stack where it is down, and the iteration where none is under way."""
        if time.monotonic() - self.moved > PATIENCE_SECONDS:
            if not self.open or not all(kill.survived for kill, _ in self.open):
                raise Standstill(
                    f"nothing was committed for {PATIENCE_SECONDS:.0f} s; see {self.store.root / '.stack'}"
                )
            for kill, _ in self.open:
                kill.survived = False
            self.stop()
        if self.way.start():
            self._end_watch()
            for kill, _ in self.open:
                kill.restarted += 1
            self.moved = time.monotonic()
        if self._under_way():
            return
        if len(self.kills) >= self.wanted and self._finished() and not self.open:
            return
        for kill, _ in self.open:
            kill.resumed += 1
        command, environment = self.way.iterate()
        with self.notes.with_name("said.log").open("ab") as said:
            self.watch = subprocess.Popen(
                command, cwd=PROJECT_ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=said,
                stderr=subprocess.STDOUT,
            )  # fmt: skip

    def _under_way(self) -> bool:
        """Whether the command that watches an iteration lives, or the process that holds the run."""
        if self.watch is not None and self.watch.poll() is None:
            return True
        try:
            note = json.loads(self.store.lock_note(self.config.run).read_text())
            return psutil.Process(note["pid"]).status() != psutil.STATUS_ZOMBIE
        except (OSError, ValueError, psutil.NoSuchProcess):
            return False

    def _end_watch(self) -> None:
        if self.watch is not None and self.watch.poll() is None:
            self.watch.kill()
            self.watch.wait()

    def _kill_if_due(self, kill: Planned) -> None:
        """Kill, if the schedule says so. Time without a victim of its kind does not count."""
        now, before = time.monotonic(), self.looked
        self.looked = now
        if self.since < kill.commits or all(kind != kill.victim for kind, _ in victims(self.store.root)):
            return
        self.waited += now - before
        if self.waited < kill.wait * (median(self.gaps) if self.gaps else FIRST_GUESS):
            return
        iteration, stage = self._next_stage()
        if not kill_one(self.store.root, kill.victim, Random(f"{self.seed} choice {kill.number}")):
            return
        done = Kill(kill.number, kill.victim, stage, iteration)
        self.last_event = self.moved = time.monotonic()
        self.since, self.waited = 0, 0.0
        self.open.append((done, self.last_event))
        self._note(done)

    def stop(self) -> None:
        """Stop all that was started."""
        self._end_watch()
        self.way.stop()
