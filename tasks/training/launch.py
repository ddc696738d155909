"""Train in several processes on this host, which torchrun starts and ends together.

A temporary folder is all that this process and those share:

    job.pkl        the `TrainingJob`, written here
    steps.jsonl    one line per step, appended by process 0
    result.pkl     what `train` returned, written by process 0
    error-<n>.txt  why process n gave up
    log.txt        what torchrun and the processes printed

Imports no torch.
"""

import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tasks.engines.reaper import watch
from tasks.training.job import OnStep, TrainingJob
from tasks.training.records import StepRecord, TrainingError, TrainingResult

JOB, STEPS, RESULT, LOG = "job.pkl", "steps.jsonl", "result.pkl", "log.txt"
POLL_SECONDS = 0.2
LOG_LINES = 20  # of the log, in an error
ROOT = Path(__file__).parents[2]


def train_in_processes(job: TrainingJob, on_step: OnStep) -> TrainingResult:
    """`trainer.train` in several processes, which end with this one, however it ends; `on_step` is called in this one.

    Raises:
        TrainingError: as `train`; or a process died, with the end of the log.
    """
    processes = job.trainer.processes
    with tempfile.TemporaryDirectory(prefix="nlac-train-") as name:
        folder = Path(name)
        (folder / JOB).write_bytes(pickle.dumps(job))
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}",
            "-m", "tasks.training.worker", str(folder),
        ]  # fmt: skip
        with (folder / LOG).open("wb") as log:
            torchrun = subprocess.Popen(
                command, env=_environment(processes), stdout=log, stderr=subprocess.STDOUT
            )
            reaper = watch([psutil.Process(torchrun.pid)])
            try:
                told = 0
                while (code := torchrun.poll()) is None:
                    time.sleep(POLL_SECONDS)
                    told = _tell(folder / STEPS, told, on_step)
                _tell(folder / STEPS, told, on_step)
            finally:
                if torchrun.poll() is None:
                    torchrun.terminate()
                    torchrun.wait()
                assert reaper.stdin
                reaper.stdin.close()
                reaper.wait()
        if code == 0:
            result: TrainingResult = pickle.loads((folder / RESULT).read_bytes())
            return result
        for refused in sorted(folder.glob("error-*.txt")):
            raise TrainingError(refused.read_text())
        last = "\n".join((folder / LOG).read_text(errors="replace").splitlines()[-LOG_LINES:])
        raise TrainingError(
            f"torchrun ended with exit code {code}; trainer.processes: 1 trains in one process. Its last words:\n{last}"
        )


def _environment(processes: int) -> dict[str, str]:
    """This process's own, with the program on the path and the cores divided among the processes."""
    threads = str(max(1, (os.cpu_count() or 1) // processes))
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        "OMP_NUM_THREADS": threads,
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
    }


def _tell(path: Path, told: int, on_step: OnStep) -> int:
    """Report the steps after the first `told`; returns how many are reported now."""
    if not path.is_file():
        return told
    lines = path.read_bytes().split(b"\n")[:-1]  # what follows the last newline is being written
    for line in lines[told:]:
        content = json.loads(line)
        on_step(StepRecord(**content["record"]), content["total"])
    return len(lines)
