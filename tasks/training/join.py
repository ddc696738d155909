"""Lend this host to the trainings of another one: join each, as long as this process lives. Imports no torch."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

from schemas.config import TrainerSection
from tasks.engines.vllm.servers import put_to_sleep
from tasks.training.records import TrainingError
from tasks.training.torchrun import RENDEZVOUS, Rendezvous, rendezvous, running, torchrun_command

LOOK_SECONDS = 2.0
END_SECONDS = 30.0  # for the store of a training that is over
CONNECT_SECONDS = 5.0


def join_trainings(trainer: TrainerSection, cache_dir: Path) -> Iterator[str]:
    """Join one training after another; each yields what a person should know.

    Args:
        trainer: of the configuration that the stages have.
        cache_dir: of the data root; vLLM servers of this host make room for a training.

    Raises:
        TrainingError: nothing can be joined with this configuration, or here.
    """
    if trainer.hosts == 1:
        raise TrainingError(
            "trainer.hosts is 1, so a stage trains on its own host; set it to the number of hosts"
        )
    place = rendezvous()
    if place.is_here:
        raise TrainingError(
            f"{RENDEZVOUS} names this host, which runs the training stages itself; join from the others"
        )
    command = torchrun_command(trainer, place)
    yield f"waiting for trainings at {place.shown}, with {trainer.processes} processes of this host ({place.own})"
    while True:
        while not _has_store(place):
            time.sleep(LOOK_SECONDS)
        yield from (f"not put to sleep: {reason}" for reason in put_to_sleep(cache_dir))
        with running(command, trainer, place) as torchrun:
            code = torchrun.wait()
        deadline = time.monotonic() + END_SECONDS
        while _has_store(place) and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        yield "trained" if code == 0 else f"this training failed (exit code {code}); its stage says more"


def _has_store(place: Rendezvous) -> bool:
    """Whether a store answers at the rendezvous."""
    try:
        socket.create_connection((place.host, place.port), CONNECT_SECONDS).close()
    except OSError:
        return False
    return True
