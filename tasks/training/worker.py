"""One of the processes that train together; torchrun starts it as `python -m tasks.training.worker [FOLDER]`.

FOLDER is that of `tasks.training.launch`. On other hosts there is none: those processes get the job from the first one.
"""

import ctypes
import json
import os
import pickle
import signal
import sys
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.rendezvous import rendezvous

from tasks.lean_imports import lean_transformers
from tasks.training.job import TrainingJob
from tasks.training.launch import JOB, MET, RESULT, STEPS
from tasks.training.meeting import TOLD, agree, propose
from tasks.training.processes import Processes
from tasks.training.records import StepRecord, TrainingError

with lean_transformers():
    from tasks.training.trainer import train


@record  # puts the traceback into torchrun's log
def main(folder: Path | None) -> int:
    """Train with the others; returns 0 when done, 1 when the training was refused."""
    if sys.platform == "linux":  # torchrun, killed, can't end us (prctl(2), PR_SET_PDEATHSIG)
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    store, counted, size = next(rendezvous("env://"))
    local = int(os.environ["LOCAL_RANK"])
    job: TrainingJob | None = None
    try:
        if folder is not None and local == 0:
            (folder / MET).touch()
            job = pickle.loads((folder / JOB).read_bytes())
            propose(store, job, counted)
        terms, hindrances = agree(store, counted, size)
    except TrainingError as refused:
        _refuse(folder, counted, str(refused))
        return 1
    rank = terms.rank(counted, size)
    if hindrances:
        if rank == 0:
            _refuse(folder, rank, "; ".join(hindrances))
            store.set(TOLD, "")
        store.get(TOLD)  # the store may end with this process's host
        return 1
    if terms.cuda:
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if terms.cuda else "gloo", store=store, rank=rank, world_size=size)
    given = [job]
    dist.broadcast_object_list(given)
    (job,) = given
    assert job is not None
    processes = Processes(rank, size)

    def on_step(done: StepRecord, total: int) -> None:
        if processes.first:
            assert folder is not None
            with (folder / STEPS).open("a") as file:
                file.write(json.dumps({"record": asdict(done), "total": total}) + "\n")

    try:
        result = train(job, on_step, processes)
    except TrainingError as refused:
        _refuse(folder, rank, str(refused))
        return 1
    if processes.first:
        assert folder is not None
        (folder / RESULT).write_bytes(pickle.dumps(result))
    dist.barrier()
    dist.destroy_process_group()
    return 0


def _refuse(folder: Path | None, rank: int, reason: str) -> None:
    """Say why for the process that launched this one, or for the person who did."""
    if folder is not None:
        (folder / f"error-{rank}.txt").write_text(reason)
    else:
        sys.stderr.write(f"{reason}\n")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else None))
