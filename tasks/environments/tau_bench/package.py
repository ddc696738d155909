"""The package `tau_bench`, imported at first use: policies, tools, tables, tasks, the simulated user's prompt."""

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
"""Domain -> split -> number of tasks in the package."""

_TASKS = {
    ("retail", "train"): "TASKS_TRAIN",
    ("retail", "test"): "TASKS_TEST",
    ("retail", "dev"): "TASKS_DEV",
    ("airline", "test"): "TASKS",
}


@dataclass(frozen=True)
class Domain:
    """A domain of the package.

    Attributes:
        policy: the agent's instructions, Markdown.
        tools: name -> tool; `invoke(data, **arguments)` changes the tables and returns a text.
        schemas: the tools' OpenAI function schemas, in the package's order.
        terminal: tools that end the conversation.
        snapshot: the database.
        tasks: split -> tasks, each with `instruction`, `actions` and `outputs`.
        files: the package's files that all of this comes from, by their path in the package.
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
    """Load a domain, once per process.

    Raises:
        ImportError: the package is not installed or of an unknown version; names the command.
    """
    folder = f"tau_bench.envs.{name}"
    with _importing():
        base: Any = importlib.import_module("tau_bench.envs.base")
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
        terminal=frozenset({"transfer_to_human_agents"}),  # the package states it inside constructors only
        snapshot=Snapshot(tables, base.to_hashable),
        tasks=tasks,
        files=_files(Path(base.__file__).parent, name),
    )


def _files(envs: Path, name: DomainName) -> dict[str, Path]:
    """Code, tables and texts of a domain, and files that both domains use."""
    inside = [path for path in (envs / name).rglob("*") if path.suffix in {".py", ".json", ".md"}]
    return {str(p.relative_to(envs)): p for p in sorted([envs / "base.py", envs / "user.py", *inside])}


def user_messages() -> Any:
    """The package's simulated user without its model: `reset(instruction)` and `step(content)` extend the chat in
    `messages` and send no request."""
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
    """Import from the package with an empty module in place of `litellm`, which only its own user and agents call.

    The released litellm requires older versions of openai and huggingface_hub than this program, takes seconds to
    import, and downloads a price list at import.

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
