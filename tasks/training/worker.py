"""One of the processes that train together; torchrun starts it as `python -m tasks.training.worker FOLDER`."""

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

from tasks.lean_imports import lean_transformers
from tasks.training.job import TrainingJob
from tasks.training.launch import JOB, RESULT, STEPS
from tasks.training.processes import Processes
from tasks.training.records import StepRecord, TrainingError

with lean_transformers():
    from tasks.training.trainer import train


@record  # puts the traceback into torchrun's log
def main(folder: Path) -> int:
    """Train with the others; returns 0 when done, 1 when the training was refused."""
    if sys.platform == "linux":  # torchrun, killed, can't end us (prctl(2), PR_SET_PDEATHSIG)
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    job: TrainingJob = pickle.loads((folder / JOB).read_bytes())
    cuda = job.model.device != "cpu" and torch.cuda.is_available()
    size = int(os.environ["WORLD_SIZE"])
    if cuda and torch.cuda.device_count() < size:
        found = torch.cuda.device_count()
        refusal = f"trainer.processes is {size}, but there are {found} GPUs here; lower it to their number"
        (folder / "error-0.txt").write_text(refusal)
        return 1
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    processes = Processes(dist.get_rank(), dist.get_world_size())

    def on_step(done: StepRecord, total: int) -> None:
        if processes.first:
            with (folder / STEPS).open("a") as file:
                file.write(json.dumps({"record": asdict(done), "total": total}) + "\n")

    try:
        result = train(job, on_step, processes)
    except TrainingError as refused:
        (folder / f"error-{processes.rank}.txt").write_text(str(refused))
        return 1
    if processes.first:
        (folder / RESULT).write_bytes(pickle.dumps(result))
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
