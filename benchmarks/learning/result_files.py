"""Results of long runs as files that are committed: figures by iteration, and what they were measured with."""

import hashlib
import json
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from benchmarks.checks import processor
from benchmarks.learning.measured_run import F, Figures
from schemas.config import Config
from schemas.load import PROJECT_ROOT
from storage.files import replace_text

FASTER = ("avx512_bf16", "amx_bf16")  # what bfloat16 weights are multiplied with


@dataclass
class WalkFigures(Figures):
    """Figures after one iteration of a language model's run.

    Attributes:
        optimal_actions: probability that a sampled action is optimal, the mean over the held-out states.
        next_cell: share of futures that name what the action leads to.
        judged_value, distilled_value, verdict_auroc: see `benchmarks.learning.improvement_signal`; None where the
            iteration improved nothing.
        tokens: written and trained on in this iteration.
        seconds: of its stages, the measuring left out.
    """

    optimal_actions: float = 0.0
    next_cell: float | None = None
    judged_value: float | None = None
    distilled_value: float | None = None
    verdict_auroc: float | None = None
    tokens: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Record(Generic[F]):
    """What every result holds.

    Attributes:
        configuration: its digest, without the seed, so that it is the same for each seed.
        machine: processor, its cores and its flags, threads used, type of the weights, the GPU if one was used.
        commit: of the program, when the run was begun or last gone on with.
        date: of the last iteration.
        fresh_optimizer: iterations whose training diverged, so that it was repeated with a fresh optimizer.
        figures: by iteration.
    """

    FIGURES: ClassVar[type[Figures]]
    configuration: str
    machine: dict[str, Any] = field(default_factory=dict)
    commit: str = ""
    date: str = ""
    fresh_optimizer: list[int] = field(default_factory=list)
    figures: list[F] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Of the run and its file."""
        raise NotImplementedError


@dataclass(frozen=True)
class Result(Record[WalkFigures]):
    """One run of a pretrained language model on the line walk.

    Attributes:
        variant: of the algorithm.
        cells: of the line.
        seed: of the run.
        games: whether each evaluation game of the last evaluated iteration was won, in their order; the games of all
            runs of a seed are the same.
    """

    FIGURES = WalkFigures
    variant: str
    cells: int
    seed: int
    games: list[bool] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.variant}-{self.cells}-{self.seed}"


R = TypeVar("R", bound=Record[Any])


def write_result(folder: Path, result: Record[Any]) -> Path:
    """Write a result, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.name}.json"
    content = asdict(result)
    figures = content.pop("figures")  # long, so they come last
    replace_text(path, json.dumps({**content, "figures": figures}, indent=1) + "\n")
    return path


def read_result(path: Path, kind: type[R]) -> R:
    """Read a result of this kind."""
    content = json.loads(path.read_text())
    return kind(**{**content, "figures": [kind.FIGURES(**row) for row in content["figures"]]})


def read_results(folder: Path, kind: type[R]) -> list[R]:
    """All results of a folder, by name."""
    return [read_result(path, kind) for path in sorted(folder.glob("*.json"))]


def measured_here(result: R, config: Config, figures: Sequence[Figures], **more: Any) -> R:
    """A result with these figures (and further fields), as of this machine and day. Loads torch.

    Args:
        result: without figures.
        config: the settled configuration that they were computed with.
        figures: by iteration.
        more: further fields.
    """
    import torch

    from tasks.training.model import device_of

    flags, cores, name = processor()
    machine = {
        "dtype": config.model.dtype,
        **({"gpu": torch.cuda.get_device_name()} if device_of(config.model) == "cuda" else {}),
        "processor": name,
        "cores": cores,
        "flags": [flag for flag in FASTER if flag in flags],
        "threads": torch.get_num_threads(),
    }
    today = date.today().isoformat()
    return replace(result, machine=machine, date=today, figures=[*figures], **more)


def commit() -> str:
    """The program's commit, with -dirty where files but results differ from it; empty outside a checkout."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=PROJECT_ROOT, capture_output=True, text=True)
        return done.stdout.strip()

    differs = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs/results")
    return git("rev-parse", "--short=12", "HEAD") + ("-dirty" if differs else "")


def configuration_digest(config: Config) -> str:
    """sha256 (12 hex) of all that determines a run but its name, its seed, how the trainer computes, where its files
    lie, and the type of weights, which follows the machine. Fields with their defaults do not count, so that a new one
    changes nothing."""
    content = config.model_dump(
        mode="json", exclude={"run", "seed", "trainer", "pools"}, exclude_defaults=True
    )
    for section, name in (("warm_start", "file"), ("model", "dtype")):
        content.get(section, {}).pop(name, None)
    if Path(config.model.name).is_absolute():
        content["model"].pop("name", None)
    content["environment"].get("options", {}).pop("seed", None)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
