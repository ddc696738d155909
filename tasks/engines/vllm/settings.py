"""Arguments for vLLM, in process or as a server, and the reading of its results. Imports no vllm."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.config import EngineSection, ModelSection
from tasks.engines.protocol import Completion

if TYPE_CHECKING:
    from tasks.chat.tokenizers import ChatTokenizer

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # the LoRA ranks that vLLM takes as a maximum

# Without a size vLLM takes nearly all of main memory for its KV cache. Compiling for CPU takes minutes.
ON_CPU = {"kv_cache_memory_bytes": 2 << 30, "enforce_eager": True}


def private_variables(cache_dir: Path) -> dict[str, str]:
    """Environment that vLLM reads at import: no usage statistics, caches in `cache_dir`. The user's own values stay."""
    defaults = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_DO_NOT_TRACK": "1",
        "VLLM_CACHE_ROOT": str(cache_dir / "vllm"),
        "VLLM_CONFIG_ROOT": str(cache_dir / "vllm" / "config"),
        "TORCHINDUCTOR_CACHE_DIR": str(cache_dir / "vllm" / "inductor"),
        "TRITON_CACHE_DIR": str(cache_dir / "vllm" / "triton"),
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
    return {name: os.environ.get(name, value) for name, value in defaults.items()}


def engine_arguments(
    section: EngineSection, model: ModelSection, base: Path | str, weights: Path | str, *, lora: bool
) -> dict[str, Any]:
    """Arguments of vLLM's engine, by their Python names.

    Args:
        section: `max_batch`, and `options`, which override any of these arguments.
        model: dtype, context length, revision, LoRA rank and modules.
        base: location of the model's own weights and tokenizer.
        weights: the weights to serve: `base`, or a checkpoint trained from it, which holds no tokenizer.
        lora: reserve room for LoRA adapters.
    """
    import torch

    return {
        "model": str(weights),
        "revision": model.revision if str(weights) == str(base) else None,
        "tokenizer": str(base),
        "tokenizer_revision": model.revision,
        "dtype": model.dtype,
        "max_model_len": model.context_length,
        "max_num_seqs": section.max_batch,
        "max_logprobs": -1,  # no limit on what a request may ask for
        "generation_config": "vllm",  # no sampling defaults from the checkpoint
        "enable_log_requests": False,
        "disable_log_stats": True,
        **(_lora_arguments(model, base) if lora else {}),
        **({} if torch.cuda.is_available() else ON_CPU),
        **section.options,
    }


def _lora_arguments(model: ModelSection, base: Path | str) -> dict[str, Any]:
    rank = next((rank for rank in RANKS if rank >= model.lora.r), RANKS[-1])
    modules: str | list[str] | None = model.lora.target_modules
    if isinstance(modules, str):  # "all-linear", or a pattern, for which vLLM has no option
        modules = linear_modules(base, model.revision) if modules == "all-linear" else None
    return {
        "enable_lora": True,
        "max_lora_rank": rank,
        "max_loras": 2,
        "max_cpu_loras": 4,
        "lora_target_modules": modules,
    }


def linear_modules(path: Path | str, revision: str | None = None) -> list[str]:
    """Names of a model's linear layers except the output layer: peft's meaning of "all-linear".

    vLLM by default puts LoRA on the output layer too. Its LoRA code there mistakes positions of prompt
    log-probabilities for requests, and two scoring requests at once end the engine (vLLM 0.32).
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(str(path), revision=revision))
    head = model.get_output_embeddings()
    linear = (n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and m is not head)
    return sorted({name.rpartition(".")[2] for name in linear})


def read_completion(
    tokenizer: ChatTokenizer,
    prompt: Sequence[int],
    tokens: Sequence[int],
    logprobs: Sequence[float],
    text: str,
    finish_reason: str | None,
    stop_reason: int | str | None,
) -> Completion:
    """A completion from vLLM's result: `text` as vLLM decoded it, `tokens` with the one that ended it."""
    ended_by_token = finish_reason == "stop" and isinstance(stop_reason, int | None)
    written = len(tokens) - 1 if ended_by_token else len(tokens)
    # vLLM cuts a stop string off the text only. Otherwise its text lacks marks that are special tokens.
    cut = finish_reason == "stop" and not ended_by_token
    return Completion(
        text=text if cut else tokenizer.completion_text(list(prompt), list(tokens[:written])),
        finish_reason="stop" if finish_reason == "stop" else "length",
        prompt_tokens=len(prompt),
        completion_tokens=written,
        token_ids=tuple(tokens[:written]),
        logprobs=tuple(logprobs[:written]),
        end_token_id=tokens[written] if ended_by_token else None,
        end_logprob=logprobs[written] if ended_by_token else None,
    )
