"""The package `tau_bench`, imported when first needed: policies, tools, tables, tasks, the simulated user's prompt."""

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal

from tasks.environments.tau_bench.database import Snapshot

DomainName = Literal["retail", "airline"]
INSTALL: Final = 'pip install --no-deps "tau_bench @ git+https://github.com/sierra-research/tau-bench"'
SIZES: Final[Mapping[DomainName, Mapping[str, int]]] = {
    "retail": {"train": 500, "test": 115, "dev": 20},
    "airline": {"test": 50},
}
"""Splits of each domain, with the number of tasks the package has in them."""

_TASKS = {
    ("retail", "train"): "TASKS_TRAIN",
    ("retail", "test"): "TASKS_TEST",
    ("retail", "dev"): "TASKS_DEV",
    ("airline", "test"): "TASKS",
}


@dataclass(frozen=True)
class Domain:
    """What the package has for a domain.

    Attributes:
        policy: what the agent must keep to, Markdown.
        tools: name -> the tool; `invoke(data, **arguments)` changes the tables and gives a text.
        schemas: the same as OpenAI function schemas, in the package's order.
        terminal: tools whose use ends the conversation.
        snapshot: the database.
        tasks: split -> tasks, each with `instruction`, `actions` and `outputs`.
        files: the package's files behind all this, by their path in it.
    """

    policy: str
    tools: Mapping[str, Any]
    schemas: Sequence[Mapping[str, Any]]
    terminal: frozenset[str]
    snapshot: Snapshot
    tasks: Mapping[str, Sequence[Any]]
    files: Mapping[str, Path]


@lru_cache
def load_domain(name: DomainName) -> Domain:
    """Everything of a domain; loaded once in a process.

    Raises:
        ImportError: the package is not installed, or not the one this was written for; with the command.
    """
    folder = f"tau_bench.envs.{name}"
    with _importing():
        base = importlib.import_module("tau_bench.envs.base")
        tools = importlib.import_module(f"{folder}.tools").ALL_TOOLS
        policy = importlib.import_module(f"{folder}.wiki").WIKI
        tables = importlib.import_module(f"{folder}.data").load_data()
        tasks = {
            split: getattr(importlib.import_module(f"{folder}.tasks_{split}"), _TASKS[name, split])
            for split in SIZES[name]
        }
    schemas = [tool.get_info() for tool in tools]
    return Domain(
        policy=policy,
        tools={s["function"]["name"]: tool for s, tool in zip(schemas, tools, strict=True)},
        schemas=schemas,
        terminal=frozenset({"transfer_to_human_agents"}),  # stated inside the package's constructors alone
        snapshot=Snapshot(tables, base.to_hashable),
        tasks=tasks,
        files=_files(Path(base.__file__).parent, name),
    )


def _files(envs: Path, name: DomainName) -> dict[str, Path]:
    """Code, tables and texts of a domain, and what both domains use."""
    inside = [path for path in (envs / name).rglob("*") if path.suffix in {".py", ".json", ".md"}]
    return {str(p.relative_to(envs)): p for p in sorted([envs / "base.py", envs / "user.py", *inside])}


def user_messages() -> Any:
    """The package's simulated user without its model: `reset(instruction)` and `step(content)` write `messages`, the
    chat to go on with, and ask for nothing."""
    with _importing():
        simulation: Any = importlib.import_module("tau_bench.envs.user").LLMUserSimulationEnv

    class Messages(simulation):  # type: ignore[misc]
        def __init__(self) -> None:
            """No model, no request."""

        def generate_next_message(self, messages: list[Any]) -> str:
            return ""

    return Messages()


@contextmanager
def _importing() -> Iterator[None]:
    """Import from the package without `litellm`, which only its own user simulation and agents call.

    The released litellm forces older versions of openai and huggingface_hub than this program runs with, takes seconds
    to import, and fetches a price list from the network while it does. So an empty module stands in for it meanwhile.

    Raises:
        ImportError: as load_domain.
    """
    if importlib.util.find_spec("tau_bench") is None:
        raise ImportError(f"the package tau_bench is not installed; install it with: {INSTALL}")
    missing = "litellm" not in sys.modules
    if missing:
        stand_in = ModuleType("litellm", "Stands in for litellm while tau_bench is imported.")
        stand_in.completion = None  # type: ignore[attr-defined]
        sys.modules["litellm"] = stand_in
    try:
        yield
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"the installed tau_bench is not the package this program knows ({error}); install it with: {INSTALL}"
        ) from error
    finally:
        if missing:
            del sys.modules["litellm"]
