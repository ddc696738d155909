"""Spread a model's layers over the processes that train it, by torch's fully_shard (FSDP2).

Embeddings, head and the last norm stay whole in each process: embeddings and head are often tied, and the loss uses the
head apart from the decoder.
"""

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from transformers import PreTrainedModel

from tasks.training.processes import Processes
from tasks.training.records import TrainingError


def shard_layers(model: PreTrainedModel, processes: Processes) -> None:
    """Shard every decoder layer, in place, so that gradients are summed over the processes, not averaged.

    Each process has loaded the model whole, with its adapter.

    Raises:
        TrainingError: the model does not say which of its modules are layers.
    """
    names = set(model._no_split_modules or ())
    layers = [module for module in model.modules() if type(module).__name__ in names]
    if not layers:
        raise TrainingError(f"trainer.shard: {type(model).__name__} does not name its layers; set it to none")
    mesh = init_device_mesh(model.device.type, (processes.size,))
    decoder = model.get_decoder()
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    sharded = {parameter for layer in layers for parameter in layer.parameters()}
    fully_shard(decoder, mesh=mesh, ignored_params=set(decoder.parameters()) - sharded)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            if model.device.type == "cpu":
                module.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sum
