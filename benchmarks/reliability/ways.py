"""What runs the iterations that are under fire: a stack, as a user has it, or one process for each iteration."""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from flows.stack import control
from flows.stack.environment import STACK_MARK, client_environment
from flows.stack.record import read_stack
from storage.store import Store

Command = tuple[list[str], Mapping[str, str]]


class Way(Protocol):
    """Keeps what an iteration needs."""

    kinds: tuple[str, ...]
    """Of processes, model servers apart."""

    def start(self) -> bool:
        """Start what is down; says whether anything was."""
        ...

    def iterate(self) -> Command:
        """The command that goes on with the unfinished iteration, or begins the next, and its environment."""
        ...

    def stop(self) -> None:
        """Stop all that was started."""
        ...


@dataclass(frozen=True)
class Deployed:
    """Over a stack: `nlac up`, and `prefect deployment run nlac/iteration`.

    Attributes:
        store: of the run.
        run: its name.
        file: its configuration, an absolute path.
    """

    store: Store
    run: str
    file: Path
    kinds = ("stage", "iteration", "worker", "server", "supervisor")

    def start(self) -> bool:
        """As the protocol."""
        if read_stack(self.store.root) is not None:
            return False
        control.up(self.store.root, self.file)
        return True

    def iterate(self) -> Command:
        """As the protocol."""
        stack = read_stack(self.store.root)
        address = stack.api_url if stack else ""  # gone in this moment: the command fails, and is run again
        parameters = json.dumps({"config": str(self.file), "run": self.run})
        command = ["prefect", "deployment", "run", "nlac/iteration", "--watch", "--params", parameters]
        return [sys.executable, "-m", *command], client_environment(self.store.root, address)

    def stop(self) -> None:
        """As the protocol."""
        control.down(self.store.root)


@dataclass(frozen=True)
class InProcess:
    """Without Prefect: one process computes all stages of an iteration. Attributes as of Deployed."""

    store: Store
    run: str
    file: Path
    kinds = ("stage",)

    def start(self) -> bool:
        """As the protocol: there is nothing."""
        return False

    def iterate(self) -> Command:
        """As the protocol."""
        begun = self.store.iterations(self.run)
        finished = sum(self.store.current(self.run, number).state == "finished" for number in begun)
        arguments = ["benchmarks.reliability.tables", str(self.file), str(self.store.root), str(finished + 1)]
        return [sys.executable, "-m", *arguments], {**os.environ, STACK_MARK: str(self.store.root)}

    def stop(self) -> None:
        """As the protocol: ends the processes with the mark, model servers among them."""
        control.down(self.store.root)
