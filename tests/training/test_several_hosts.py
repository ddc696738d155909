"""Hosts with networks of their own train together, by torchrun's rendezvous; and what ends that, with its reason."""

import os
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest
import torch
import yaml
from torch.distributed import HashStore

from schemas.config import ModelSection, TrainerSection, TrainingSection
from schemas.load import PROJECT_ROOT
from tasks.training.job import TrainingJob
from tasks.training.join import join_trainings
from tasks.training.launch import train_in_processes
from tasks.training.meeting import Terms, agree, propose
from tasks.training.records import TrainingError, TrainingResult
from tasks.training.torchrun import RENDEZVOUS, rendezvous, torchrun_command
from tests.support.hosts import Host, done, hosts, lacking
from tests.support.tiny_rows import tiny_job
from tests.support.waiting import wait_until

SECTION = TrainingSection(batch_rows=4, micro_batch_rows=1, learning_rate=0.01, epochs=2)
TOGETHER = TrainerSection(hosts=2, shard="fsdp", checkpoint_steps=1)
PORT = 29400
STAGE = "10.77.1.1"
"""The first host's address on its way to the second one (`tests.support.hosts`)."""


@dataclass(frozen=True)
class Pair:
    """A host that runs a stage, and one that lends itself to it."""

    stage: Host
    other: Host
    base: Path

    def joins(self, trainer: TrainerSection = TOGETHER) -> "subprocess.Popen[str]":
        """`nlac join-training` on the other host, once it waits."""
        config = self.base / "joined.yaml"
        config.write_text(yaml.safe_dump({"run": "joined", "trainer": trainer.model_dump(mode="json")}))
        joined = self.other.nlac("join-training", "--config", str(config), "--data", str(self.base / "data"))
        assert joined.stdout is not None
        assert f"waiting for trainings at {STAGE}:{PORT}" in joined.stdout.readline()
        # Unread, a pipe fills, and who writes to it waits.
        threading.Thread(target=self._keep, args=[joined.stdout]).start()
        return joined

    def _keep(self, said: IO[str]) -> None:
        with (self.base / "joined.log").open("w") as log:
            for line in said:
                log.write(line)
                log.flush()

    def begins(self, job: TrainingJob, *more: str) -> "subprocess.Popen[str]":
        """The stage's part."""
        (self.base / "job").write_bytes(pickle.dumps(job))
        (self.base / "result").unlink(missing_ok=True)
        here = (str(self.base / "job"), str(self.base / "result"), *more)
        return self.stage.start(sys.executable, "-m", "tests.support.train_here", *here)

    def result(self, training: "subprocess.Popen[str]") -> tuple[TrainingResult | None, str]:
        """What came of it, and why nothing did."""
        done(training)
        found: tuple[TrainingResult | None, str] = pickle.loads((self.base / "result").read_bytes())
        return found


@contextmanager
def pair(base: Path) -> Iterator[Pair]:
    if reason := lacking():
        pytest.skip(reason)
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    variables = {
        **kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(PROJECT_ROOT), RENDEZVOUS: f"{STAGE}:{PORT}",
        "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    with hosts(["stage", "other"], base, variables) as (stage, other):
        yield Pair(stage, other, base)


@pytest.mark.long
def test_two_hosts_train_as_two_processes_of_one_do_and_who_is_missing_or_lost_is_told(
    model_section: ModelSection, tmp_path: Path
) -> None:
    one = tiny_job(
        model_section, tmp_path / "one", SECTION, trainer=TrainerSection(processes=2, shard="fsdp")
    )
    alone = train_in_processes(one, lambda record, total: None)
    with pair(tmp_path) as two:
        missed = tiny_job(model_section, tmp_path / "missed", SECTION, trainer=TOGETHER)
        made, why = two.result(two.begins(missed, "3"))
        assert made is None and f"within 3 s not so many met at {STAGE}:{PORT}" in why, why
        joined = two.joins()
        for name in ("two", "again"):
            job = tiny_job(model_section, tmp_path / name, SECTION, trainer=TOGETHER)
            made, why = two.result(two.begins(job))
            assert made == alone, why
            for file in sorted(path for path in one.out.rglob("*.safetensors")):
                assert (job.out / file.relative_to(one.out)).read_bytes() == file.read_bytes()
        long = SECTION.model_copy(update={"epochs": 400})
        job = tiny_job(model_section, tmp_path / "lost", long, trainer=TOGETHER, checkpoint=tmp_path / "a.pt")
        training = two.begins(job)
        wait_until(lambda: (tmp_path / "a.pt").exists(), 600, "a step over both hosts")
        two.other.kill()
        made, why = two.result(training)
        assert made is None and why.startswith("a training over 2 hosts ended"), why
        assert "goes on from its checkpoint" in why and torch.load(tmp_path / "a.pt")["steps"]
        joined.wait()


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (None, "is 'not set'; set NLAC_RENDEZVOUS to HOST:PORT"),
        ("10.0.0.1", "is '10.0.0.1'; set"),
        ("no.such.host.invalid:29400", "no.such.host.invalid:29400: .*; set"),
        ("localhost:29400", "localhost means 127.* which no other host reaches; give its IPv4 address"),
    ],
)
def test_hosts_without_a_place_to_meet_are_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    model_section: ModelSection,
    given: str | None,
    match: str,
) -> None:
    monkeypatch.delenv(RENDEZVOUS, raising=False)
    if given is not None:
        monkeypatch.setenv(RENDEZVOUS, given)
    with pytest.raises(TrainingError, match=match):
        train_in_processes(tiny_job(model_section, tmp_path, SECTION, trainer=TOGETHER), lambda *_: None)


def test_a_stage_on_another_host_than_the_one_where_all_meet_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model_section: ModelSection
) -> None:
    monkeypatch.setenv(RENDEZVOUS, "192.0.2.1:29400")  # an address that no host has (RFC 5737)
    with pytest.raises(TrainingError, match=r"names 192\.0\.2\.1, and this stage runs on another host"):
        train_in_processes(tiny_job(model_section, tmp_path, SECTION, trainer=TOGETHER), lambda *_: None)


def test_who_can_join_nothing_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(RENDEZVOUS, "127.0.0.1:29400")
    with pytest.raises(TrainingError, match="names this host"):
        next(join_trainings(TOGETHER, tmp_path))
    with pytest.raises(TrainingError, match=r"trainer\.hosts is 1"):
        next(join_trainings(TrainerSection(processes=2), tmp_path))


def test_torchrun_is_told_who_has_the_store_and_how_long_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RENDEZVOUS, "127.0.0.1:29400")
    command = torchrun_command(TrainerSection(hosts=4, processes=8), rendezvous(), "folder")
    assert {"--nnodes=4", "--nproc-per-node=8", "--rdzv-endpoint=127.0.0.1:29400"} < set(command)
    assert "--rdzv-conf=is_host=1,join_timeout=600" in command and command[-1] == "folder"
    assert "--standalone" in torchrun_command(TrainerSection(processes=2), None)


def agreed(job: TrainingJob, size: int, first: int = 0) -> tuple[Terms, list[str]]:
    """What `size` processes agree on, of which one proposes."""
    store = HashStore()
    propose(store, job, first)
    with ThreadPoolExecutor(size) as pool:
        every = list(pool.map(lambda counted: agree(store, counted, size), range(size)))
    assert all(one == every[0] for one in every)
    return every[0]


def test_ranks_are_counted_from_the_process_that_has_the_job(
    model_section: ModelSection, tmp_path: Path
) -> None:
    job = tiny_job(model_section, tmp_path, SECTION, trainer=TrainerSection(hosts=3, processes=2))
    terms, hindrances = agreed(job, 6, first=4)
    assert hindrances == []
    assert [terms.rank(counted, 6) for counted in range(6)] == [2, 3, 4, 5, 0, 1]


def test_a_wrong_number_of_processes_ends_all_of_them_with_one_reason(
    model_section: ModelSection, tmp_path: Path
) -> None:
    job = tiny_job(model_section, tmp_path, SECTION, trainer=TrainerSection(hosts=3))
    _, (reason,) = agreed(job, 2)
    assert reason.startswith(
        "2 processes met, and trainer.hosts x trainer.processes is 3; give all hosts the same"
    )


def test_a_host_that_does_not_share_the_data_root_is_named(
    model_section: ModelSection, tmp_path: Path
) -> None:
    kept = tmp_path / "kept.pt"
    job = tiny_job(model_section, tmp_path, SECTION, trainer=TOGETHER, checkpoint=kept)
    store = HashStore()
    propose(store, job, 0)
    kept.touch()  # as if it were there on the other host alone
    store.set("nlac/1", "")
    _, (reason,) = agree(store, 0, 2)
    assert re.match(r".* does not see .*kept\.pt as the host .* \(NLAC_DATA\)", reason)


def test_two_trainings_that_meet_are_both_ended(model_section: ModelSection, tmp_path: Path) -> None:
    store = HashStore()
    job = tiny_job(model_section, tmp_path, SECTION, trainer=TOGETHER)
    propose(store, job, 0)
    with pytest.raises(TrainingError, match="two trainings met"):
        propose(store, job, 1)
