"""One of the processes that spread a model over themselves; prints by how many bytes its peak of memory rose.

torchrun starts it as `python -m tests.support.spread CHECKPOINT TRAIN`.
"""

import resource
import sys

import torch.distributed as dist

from schemas.config import ModelSection, TrainerSection
from tasks.training.processes import Processes
from tasks.training.trainable import make_trainable


def peak() -> int:
    """Most bytes that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(checkpoint: str, train: str) -> None:
    dist.init_process_group("gloo")
    processes = Processes(dist.get_rank(), dist.get_world_size())
    section = ModelSection.model_validate(
        {"name": checkpoint, "device": "cpu", "dtype": "float32", "train": train}
    )
    before = peak()
    trainer = TrainerSection(processes=processes.size, shard="fsdp")
    made = make_trainable(section, None, seed=0, trainer=trainer, processes=processes)
    rise, loaded = peak() - before, sum(p.numel() * p.element_size() for p in made.model.parameters())
    sys.stdout.write(f"{processes.rank} {rise} {loaded}\n")
    sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
