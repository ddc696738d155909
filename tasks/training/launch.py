"""Train in several processes, on this host and on those that join it, which torchrun starts and ends together.

A temporary folder is all that this process and those of this host share:

    job.pkl        the `TrainingJob`, written here
    met            there once torchrun has started processes, and so all hosts have met
    steps.jsonl    one line per step, appended by process 0
    result.pkl     what `train` returned, written by process 0
    error-<n>.txt  why process n gave up
    log.txt        what torchrun and the processes printed

Other hosts run `tasks.training.join`. Their processes get the job from process 0. Imports no torch.
"""

import json
import pickle
import tempfile
import time
from pathlib import Path

from tasks.training.job import OnStep, TrainingJob
from tasks.training.records import StepRecord, TrainingError, TrainingResult
from tasks.training.torchrun import (
    RENDEZVOUS,
    Rendezvous,
    rendezvous,
    running,
    torchrun_command,
)

JOB, MET, STEPS, RESULT, LOG = "job.pkl", "met", "steps.jsonl", "result.pkl", "log.txt"
POLL_SECONDS = 0.2
LOG_LINES = 20  # of the log, in an error


def train_in_processes(job: TrainingJob, on_step: OnStep) -> TrainingResult:
    """`trainer.train` in several processes, which end with this one, however it ends; `on_step` is called in this one.

    Raises:
        TrainingError: as `train`; or the hosts did not meet, or a process died, with the end of the log.
    """
    place = _meeting_here() if job.trainer.hosts > 1 else None
    with tempfile.TemporaryDirectory(prefix="nlac-train-") as name:
        folder = Path(name)
        (folder / JOB).write_bytes(pickle.dumps(job))
        command = torchrun_command(job.trainer, place, str(folder))
        with (folder / LOG).open("wb") as log, running(command, job.trainer, place, log) as torchrun:
            told = 0
            while (code := torchrun.poll()) is None:
                time.sleep(POLL_SECONDS)
                told = _tell(folder / STEPS, told, on_step)
            _tell(folder / STEPS, told, on_step)
        if code == 0:
            result: TrainingResult = pickle.loads((folder / RESULT).read_bytes())
            return result
        for refused in sorted(folder.glob("error-*.txt")):
            raise TrainingError(refused.read_text())
        raise TrainingError(_why(job, place, code, folder))


def _meeting_here() -> Rendezvous:
    """Where hosts meet.

    Raises:
        TrainingError: not at this host.
    """
    place = rendezvous()
    if not place.is_here:
        raise TrainingError(
            f"{RENDEZVOUS} names {place.host}, and this stage runs on another host; have that host alone serve the "
            "training pool (nlac up --serve)"
        )
    return place


def _why(job: TrainingJob, place: Rendezvous | None, code: int, folder: Path) -> str:
    """What a failure was that no process has told."""
    log = (folder / LOG).read_text(errors="replace")
    last = "\n".join(log.splitlines()[-LOG_LINES:])
    if place is None:
        return (
            f"torchrun ended with exit code {code}; trainer.processes: 1 trains in one process. "
            f"Its last words:\n{last}"
        )
    if not (folder / MET).exists() and "RendezvousTimeoutError" in log:
        return (
            f"trainer.hosts is {job.trainer.hosts}, and within {place.seconds} s not so many met at {place.shown}; run "
            f"`nlac join-training` on each of the others, with the same {RENDEZVOUS}, and let them reach this host, or "
            "lower trainer.hosts"
        )
    return (
        f"a training over {job.trainer.hosts} hosts ended (torchrun's exit code {code}): a process has died here or on "
        "another host, where `nlac join-training` has printed more. Run the stage again: it goes on from its "
        f"checkpoint. The last words here:\n{last}"
    )


def _tell(path: Path, told: int, on_step: OnStep) -> int:
    """Report the steps after the first `told`; returns how many are reported now."""
    if not path.is_file():
        return told
    lines = path.read_bytes().split(b"\n")[:-1]  # what follows the last newline is being written
    for line in lines[told:]:
        content = json.loads(line)
        on_step(StepRecord(**content["record"]), content["total"])
    return len(lines)
