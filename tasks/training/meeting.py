"""What processes agree on before they train: who begins, and that each of them can.

torchrun gives ranks in an order of its own, and only the host that runs the stage has the job. So its first process
says in torchrun's store which one it is, and ranks are counted from it. It becomes process 0, which writes. Each
process then says whether it can train. Where one can't, all of them end, and the first tells why.
"""

import json
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch.distributed import Store  # type: ignore[attr-defined]  # torch exports it unstated

from tasks.training.job import TrainingJob
from tasks.training.records import TrainingError

TERMS, TOLD = "nlac/terms", "nlac/told"


@dataclass(frozen=True)
class Terms:
    """What the first process asks of all.

    Attributes:
        first: its rank by torchrun's count.
        world: processes of all hosts, as configured.
        cuda: whether each needs a GPU.
        paths: files and folders that all read or none, and whether they are there.
    """

    first: int
    world: int
    cuda: bool
    paths: dict[str, bool]

    def rank(self, counted: int, size: int) -> int:
        """The rank of a process among those that train, from torchrun's count."""
        return (counted - self.first) % size


def propose(store: Store, job: TrainingJob, counted: int) -> None:
    """Called by the process that begins.

    Raises:
        TrainingError: another training has begun with the same processes.
    """
    start = job.start
    read = (
        job.out, job.checkpoint, start.parameters, start.target, start.optimizer, start.anchor, start.value_head,
        start.target_value_head,
    )  # fmt: skip
    paths = {str(path): path.exists() for path in read if path is not None}
    cuda = job.model.device != "cpu" and torch.cuda.is_available()
    text = json.dumps(asdict(Terms(counted, job.trainer.world, cuda, paths)))
    if store.compare_set(TERMS, "", text).decode() != text:
        raise TrainingError(
            "two trainings met at NLAC_RENDEZVOUS, and neither can go on: run one at a time, or give each a port"
        )


def agree(store: Store, counted: int, size: int) -> tuple[Terms, list[str]]:
    """Called by every process.

    Returns:
        the terms, and why processes can't train, each reason once.
    """
    terms = Terms(**json.loads(store.get(TERMS)))
    store.set(f"nlac/{counted}", _hindrance(terms, size))
    said = (store.get(f"nlac/{one}").decode() for one in range(size))
    return terms, list(dict.fromkeys(filter(None, said)))


def _hindrance(terms: Terms, size: int) -> str:
    """Why this process can't train; empty: it can."""
    host, own = platform.node(), int(os.environ.get("LOCAL_WORLD_SIZE", size))
    if size != terms.world:
        return (
            f"{size} processes met, and trainer.hosts x trainer.processes is {terms.world}; give all hosts the same "
            "configuration"
        )
    if terms.cuda and torch.cuda.device_count() < own:
        found = torch.cuda.device_count()
        return f"trainer.processes is {own}, but there are {found} GPUs on {host}; lower it to their number"
    for path, there in terms.paths.items():
        if Path(path).exists() != there:
            return (
                f"{host} does not see {path} as the host that runs the stage does; hosts that train together need "
                "the data root as one folder under the same path (NLAC_DATA)"
            )
    return ""
