"""What trains, LoRA matrices or all weights, behind one interface for the training loop."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from schemas.config import ModelSection, TrainerSection
from tasks.training.adapters import WEIGHTS, check_form
from tasks.training.fused.fused_layers import fuse_adapter
from tasks.training.fused.parallel_micro_batches import ParallelMicroBatches, parallel_micro_batches_for
from tasks.training.lora import adapter_tensors, fresh_adapter, load_adapter, save_adapter
from tasks.training.model import device_of, load_base, load_trainable
from tasks.training.processes import ALONE, Processes, placed_as
from tasks.training.records import TrainingError
from tasks.training.sharding import shard_layers

# Larger than any checkpoint trained whole, so that it is one file of a known name.
ONE_FILE = "1000GB"


@dataclass(frozen=True)
class Trainable:
    """A model in training."""

    model: PreTrainedModel
    parameters: Mapping[str, torch.nn.Parameter]  # what trains, under the names of the optimizer state
    tensors: Mapping[str, torch.Tensor]  # the same memory under the names in files; tied weights once
    dtype: torch.dtype  # of matrix products
    write: Callable[
        [Mapping[str, torch.Tensor], Path], None
    ]  # a folder from tensors, live or target, named so
    # While entered, `model` runs without its adapter, and nothing may train; None where there is no adapter.
    without_adapter: Callable[[], AbstractContextManager[None]] | None = None
    value_head: torch.nn.Linear | None = None  # its parameters are among `parameters`
    sharded: bool = False  # each process holds a part of each layer, and all take part in each pass
    # Each micro-batch in parallel has its own gradients of all parameters, so where all weights train there is one.
    parallel: ParallelMicroBatches = field(default_factory=ParallelMicroBatches)
    processes: Processes = ALONE  # those that train it together


def make_trainable(
    section: ModelSection,
    start: Path | None,
    seed: int,
    trainer: TrainerSection | None = None,
    processes: Processes = ALONE,
    passes: int = 1,
) -> Trainable:
    """Load the model and make trainable what `model.train` says.

    Args:
        section: the model, and what of it trains.
        start: folder to start from; None: a fresh adapter, or the model's own weights.
        seed: of a fresh adapter.
        trainer: sharding and gradient checkpointing.
        processes: those that train it together.
        passes: micro-batches of a step in this process, which may be computed in parallel.

    Raises:
        TrainingError: `start` does not fit.
    """
    dtype: torch.dtype = getattr(torch, section.dtype)
    trainer = trainer or TrainerSection()
    sharded = trainer.shard == "fsdp"
    together = processes if sharded else None

    def prepare(model: PreTrainedModel) -> None:
        if trainer.gradient_checkpointing:
            checkpoint_layers(model)
        if sharded:
            shard_layers(model, device_of(section), processes)

    if section.train == "full":
        model = load_trainable(section, start, together)
        prepare(model)
        weights = dict(model.named_parameters())
        write = partial(_write_checkpoint, model)
        return Trainable(model, weights, weights, dtype, write, sharded=sharded, processes=processes)
    if start is not None:
        check_form(start, "lora")
    base = load_base(section, together)
    adapted = fresh_adapter(base, section, seed) if start is None else load_adapter(base, start, section)
    if not sharded:
        fuse_adapter(base)
    prepare(base)
    trainable = {name: value for name, value in adapted.named_parameters() if value.requires_grad}
    return Trainable(
        base,
        trainable,
        adapter_tensors(adapted),
        dtype,
        lambda tensors, path: save_adapter(adapted, tensors, path, section.name),
        adapted.disable_adapter,
        sharded=sharded,
        processes=processes,
        parallel=ParallelMicroBatches() if sharded else parallel_micro_batches_for(base, passes),
    )


def checkpoint_layers(model: PreTrainedModel) -> None:
    """Have each decoder layer store only its input and recompute the rest in the backward pass.

    Training mode turns that on. Only the layers themselves get it: what is inside them stays in evaluation mode,
    without dropout.
    """
    model.gradient_checkpointing_enable({"use_reentrant": False})
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.training = True


def target_tensors(
    trainable: Trainable, section: ModelSection, target: Path | None
) -> Mapping[str, torch.Tensor]:
    """The target parameters to start from, checked against the parameters that they follow.

    Raises:
        TrainingError: the target can't be read, or is of other parameters.
    """
    if target is None:
        return trainable.tensors
    check_form(target, section.train)
    file = target / WEIGHTS[section.train]
    try:
        # One tensor after another: together they may be as large as the model.
        with safe_open(file, framework="pt") as saved:
            names = saved.keys()
            shapes = {name: tuple(saved.get_slice(name).get_shape()) for name in names}
            _same_parameters(target, shapes, trainable.tensors)
            return {
                name: placed_as(saved.get_tensor(name), tensor) for name, tensor in trainable.tensors.items()
            }
    except (OSError, SafetensorError) as error:
        raise TrainingError(
            f"{target}: {file.name} can't be read ({error}); run the stage that wrote this target again"
        ) from error


def _same_parameters(
    target: Path, saved: Mapping[str, tuple[int, ...]], tensors: Mapping[str, torch.Tensor]
) -> None:
    for name in sorted(saved.keys() | tensors.keys()):
        theirs, ours = saved.get(name), tuple(tensors[name].shape) if name in tensors else None
        if theirs != ours:
            raise TrainingError(
                f"{target}: target parameters do not match the adapter: {name} is {theirs} in the target, {ours} in "
                "the adapter; both must come from the same run, model.train and model.lora"
            )


def _write_checkpoint(model: PreTrainedModel, tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    content = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # Names as in memory, not those of an older format: the target is read again by them.
    model.save_pretrained(path, state_dict=content, max_shard_size=ONE_FILE, save_original_format=False)
