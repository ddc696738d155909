"""Spread a model's layers over the processes that train it, by torch's fully_shard (FSDP2).

The first process reads the weights, once, into host memory. The others know the modules alone. Each receives one tensor
after another and keeps its part. Embeddings, head and the last norm stay whole in each process: embeddings and head are
often tied, and the loss uses the head apart from the decoder.
"""

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from transformers import PreTrainedModel

from tasks.training.fused.packing import packs
from tasks.training.processes import Processes
from tasks.training.records import TrainingError


def shard_layers(model: PreTrainedModel, device: str, processes: Processes) -> None:
    """Shard every decoder layer, in place, so that gradients are summed over the processes, not averaged.

    Args:
        model: as `load_base` or `load_trainable` left it for `processes`, with its adapter.
        device: where it trains, "cuda" or "cpu".
        processes: all of them call this.

    Raises:
        TrainingError: the model does not say which of its modules are layers, or can't read packed rows: rows one by
            one would be another number of passes in each process.
    """
    attention = [model.config._attn_implementation]
    if processes.size > 1:
        dist.broadcast_object_list(attention)
    if not processes.first:
        model.set_attn_implementation(attention[0])
    names = set(model._no_split_modules or ())
    layers = [module for module in model.modules() if type(module).__name__ in names]
    for fits, reason in (
        (bool(layers), "does not name its layers"),
        (packs(model), "can't read packed rows"),
    ):
        if not fits:
            raise TrainingError(f"trainer.shard: {type(model).__name__} {reason}; set trainer.shard to none")
    weights = model.state_dict() if processes.first else {}
    mesh = init_device_mesh(device, (processes.size,))
    decoder = model.get_decoder()
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    sharded = {parameter for layer in layers for parameter in layer.parameters()}
    fully_shard(decoder, mesh=mesh, ignored_params=set(decoder.parameters()) - sharded)
    if processes.first:
        model.to(device)  # type: ignore[arg-type]  # its decorator hides its signature
    else:
        _allocate(model, device)
    set_model_state_dict(
        model, weights, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    )
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            if device == "cpu":
                module.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sum


@torch.no_grad()
def _allocate(model: PreTrainedModel, device: str) -> None:
    """Give a model's missing weights memory on a device. Buffers keep their values; tied weights are one again."""
    buffers = dict(model.named_buffers())
    model.to_empty(device=device)
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])
    model.tie_weights()
