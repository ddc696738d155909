"""What an iteration needs of a GPU's memory, estimated from the model's shape before anything runs.

An estimate for training counts, on each GPU: the weights it holds, one gathered layer, gradients, the optimizer's
moments and the target, and what a micro-batch of the longest rows stores. An estimate for vLLM counts the weights, the
LoRA adapters in memory and the logits of all requests; what is left below `gpu_memory_utilization` is the cache of keys
and values. RESERVED stands for the CUDA context, kernels' workspaces and fragments. Where a configuration asks for more
GPUs than the host has, the estimate is for those that there are.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from schemas.config import Config
from tasks.engines.architectures import Architecture, architecture_of
from tasks.runtime.algorithm import Algorithm

GIB = 1 << 30
RESERVED = 2 * GIB
LOGITS = 3 * (
    256 << 20
)  # chunks of logits and their gradients in training (tasks.training.vocabulary_losses)
ADAPTERS = 2  # that vLLM holds at once (tasks.engines.vllm.settings)
UTILIZATION = 0.9  # vLLM's default

# Bytes that a layer stores of a token for its backward pass, per number of hidden state, MLP and keys: measured, see
# tests/pipeline/test_gpu_memory.py. LoRA's own are far fewer. A sharded model, or a full one, is not fused.
STORED = {"bfloat16": (18.6, 8.2, 4.2), "float32": (28.0, 16.0, 8.0)}
FUSED = {"bfloat16": (10.4, 4.1, 4.2), "float32": (20.5, 8.1, 8.3)}
GRADIENTS = 0.5  # of a layer in its backward pass, as a share of what it stores where nothing is fused
WIDTH = {"bfloat16": 2, "float32": 4}
TRAINED = 4 + 4 + 8  # bytes of a trained parameter: itself, its gradient, two moments, all float32
TARGET = 4
SMALLER = "model.name: take a smaller model"


@dataclass(frozen=True)
class Use:
    """Bytes that one purpose takes of each GPU."""

    purpose: str
    bytes: float


@dataclass(frozen=True)
class Footprint:
    """One user of the GPUs: training, or an engine.

    Attributes:
        user: "training", or the engine's name.
        gpus: that it takes.
        uses: of each GPU.
        fits: whether they fit.
        remedy: the field to change where they don't; otherwise a remark.
    """

    user: str
    gpus: int
    uses: list[Use]
    fits: bool
    remedy: str

    @property
    def bytes(self) -> float:
        """Of each GPU."""
        return sum(use.bytes for use in self.uses)


def footprints(config: Config, algorithm: Algorithm, gpu_bytes: float, gpus: int) -> Iterator[Footprint]:
    """What training and each engine that plays the model in training need.

    Args:
        config: of the run; `model.dtype: auto` counts as bfloat16.
        algorithm: whether it trains.
        gpu_bytes: memory of one GPU.
        gpus: on the host.

    Raises:
        tasks.engines.models.MissingModel: the model's shape is not known here.
    """
    shape = architecture_of(config.model)
    if algorithm.trains:
        yield _training(config, shape, gpu_bytes, gpus)
    for name in sorted({section.engine for _, section in config.roles}):
        if config.engines[name].model is None and config.engines[name].backend in ("vllm", "openai"):
            yield _serving(config, name, shape, gpu_bytes, gpus)


def _training(config: Config, shape: Architecture, gpu_bytes: float, gpus: int) -> Footprint:
    model, trainer = config.model, config.trainer
    processes = min(trainer.processes, gpus)
    parts = processes * trainer.hosts if trainer.shard == "fsdp" else 1
    width = 4 if model.train == "full" else WIDTH[_dtype(config)]
    state = TRAINED + TARGET
    layers, gathered = shape.layers * shape.layer * width, 2 * shape.layer * width if parts > 1 else 0
    if model.train == "full":
        trained = (shape.layers * shape.layer / parts + shape.ends) * (state - width)
    else:
        trained = shape.adapter(model.lora.r) / parts * state
    rows = max(config.critic.micro_batch_rows, config.policy.micro_batch_rows)
    uses = [
        Use("weights", layers / parts + shape.ends * width + gathered),
        Use("gradients, moments and target", trained),
        Use(
            f"{rows} x {model.context_length:,} tokens",
            rows * model.context_length * stored_per_token(config, shape) + LOGITS,
        ),
        Use("reserved", RESERVED),
    ]
    alone = gpus == 1 and trainer.shard == "fsdp"
    lowered = (
        "trainer: set processes to 1 and shard to none" if alone else f"trainer.processes: lower it to {gpus}"
    )
    fewer = [lowered] if trainer.processes > gpus else []
    if sum(use.bytes for use in uses) <= gpu_bytes:
        return Footprint("training", processes, uses, not fewer, ", ".join(fewer))
    remedies = [
        (uses[0].bytes + RESERVED > gpu_bytes and parts >= gpus and model.train == "lora", SMALLER),
        (not trainer.gradient_checkpointing, "trainer.gradient_checkpointing: set it to true"),
        (rows > 1, "critic.micro_batch_rows and policy.micro_batch_rows: lower them"),
        (parts == 1 and gpus > 1, f"trainer: set processes to {gpus} and shard to fsdp"),
        (model.train == "full", "model.train: set it to lora, or raise trainer.hosts"),
    ]
    remedy = next((remedy for helps, remedy in remedies if helps), "model.context_length: lower it")
    return Footprint("training", processes, uses, False, ", ".join([*fewer, remedy]))


def stored_per_token(config: Config, shape: Architecture) -> float:
    """Bytes that training keeps of each token of a micro-batch until its backward pass."""
    dtype = _dtype(config)
    fused = config.model.train == "lora" and config.trainer.shard == "none"
    numbers = (shape.hidden, shape.inner, shape.kv_heads * shape.head_size)
    whole, layer = (
        sum(each * number for each, number in zip(stored[dtype], numbers, strict=True))
        for stored in (STORED, FUSED if fused else STORED)
    )
    if config.trainer.gradient_checkpointing:
        return shape.layers * shape.hidden * WIDTH[dtype] + layer + GRADIENTS * whole
    return shape.layers * layer + GRADIENTS * whole


def _serving(config: Config, name: str, shape: Architecture, gpu_bytes: float, gpus: int) -> Footprint:
    engine, place = config.engines[name], f"engines.{name}.options"
    wanted = [int(engine.options.get(f"{kind}_parallel_size", 1)) for kind in ("tensor", "data")]
    tensor = min(wanted[0], gpus)
    replicas = min(wanted[1], gpus // tensor)
    taken = tensor * replicas
    adapters = ADAPTERS if config.model.train == "lora" else 0
    width, most = WIDTH[_dtype(config)], float(engine.options.get("gpu_memory_utilization", UTILIZATION))
    uses = [
        Use("weights", shape.parameters * width / tensor),
        Use("adapters", adapters * shape.adapter(config.model.lora.r) * width / tensor),
        Use("logits of all requests", engine.max_batch * shape.vocabulary * 4 / tensor),
        Use("reserved", RESERVED),
    ]
    left = most * gpu_bytes - sum(use.bytes for use in uses)
    token = shape.cached * width / tensor
    tokens = int(max(left, 0) / token)
    remedies = [
        f"{place}.{kind}_parallel_size: lower it to {count}"
        for kind, asked, count in zip(("tensor", "data"), wanted, (tensor, replicas), strict=True)
        if asked > count
    ]
    raised = f"{place}.tensor_parallel_size: raise it" if tensor < gpus else SMALLER
    if left <= 0:
        return Footprint(name, taken, uses, False, ", ".join([*remedies, raised]))
    uses.append(Use(f"keys and values of {tokens:,} tokens", left))
    if tokens < config.model.context_length:
        remedies.append(f"{raised}, or lower model.context_length")
    if remedies:
        return Footprint(name, taken, uses, False, ", ".join(remedies))
    at_once = f"{replicas * tokens // config.model.context_length} requests of full length at once"
    idle = f"; {gpus - taken} GPUs idle: raise {place}.data_parallel_size" if gpus - taken >= tensor else ""
    return Footprint(name, taken, uses, True, at_once + idle)


def _dtype(config: Config) -> str:
    return "bfloat16" if config.model.dtype == "auto" else config.model.dtype
