"""What a rollout loses to waiting for its environment.

    python -m benchmarks.inference.rollout [--backend transformers] [--config FILE] [--cap 16] [--episodes 128]

The program's own stage plays `--episodes` episodes on an engine that computes `--cap` requests at once. Every step of
the environment takes `--environment-ms` more than it does by itself (half to one and a half of it, drawn by the
episode). Then an engine just started answers the requests that were recorded, all there from the beginning. The two
alternate. Useful tokens a second are those of completions that came back while at least `--cap` episodes (requests)
were unfinished; start-up and drain are reported apart. rollout_efficiency is the ratio of the medians.
"""

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.checks import check, finish, print_figures
from schemas.config import Config, EngineSection, EnvironmentSection, ModelSection
from schemas.load import load_config
from tasks.algorithms import algorithm_of
from tasks.engines.backends import build_engine
from tasks.engines.dtype import choose_dtype
from tasks.engines.protocol import Capabilities, Completion, Engine, Request, ScoreRequest, Scores
from tasks.engines.request_journal import RequestJournal
from tasks.environments import make_environment
from tasks.environments.base import Environment, Step, Task
from tasks.runtime.context import StageContext
from tasks.runtime.progress import Progress, ProgressState
from tasks.runtime.role_client import RoleClient
from tasks.runtime.stage import Inputs
from tasks.stages import rollout

CONFIG = "configs/proofs/guess_number_smollm2.yaml"
BAR = 0.95


class Delayed:
    """A shipped environment, each of whose steps takes some milliseconds more, off the event loop.

    Args:
        name: of the environment.
        options: its own.
        milliseconds: on the mean.
    """

    def __init__(self, name: str, options: dict[str, Any], milliseconds: float) -> None:
        self._inner: Environment = make_environment(EnvironmentSection(name=name, options=options))
        self._mean, self._stream = milliseconds / 1000, random.Random(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def reset(self, task: Task) -> str:
        """As the environment's."""
        self._stream = random.Random(task.seed)
        return await self._inner.reset(task)

    async def step(self, action: str) -> Step:
        """As the environment's, later."""
        await asyncio.sleep(self._mean * self._stream.uniform(0.5, 1.5))
        return await self._inner.step(action)


@dataclass
class Recorder:
    """An engine that notes when each request came back, and what it was."""

    engine: Engine
    begun: float = 0.0
    cpu: float = 0.0  # of this process, when it began
    asked: list[Request] = field(default_factory=list)
    finished: list[tuple[float, float, int]] = field(default_factory=list)  # time, CPU seconds, tokens
    held: list[tuple[float, int]] = field(default_factory=list)  # time, requests at the engine from then on

    @property
    def capabilities(self) -> Capabilities:
        """The engine's."""
        return self.engine.capabilities

    async def generate(self, request: Request) -> Completion:
        """Ask the engine."""
        now = time.perf_counter()
        if not self.asked:
            self.begun, self.cpu = now, time.process_time()
        self.asked.append(request)
        self._hold(now, 1)
        try:
            completion = await self.engine.generate(request)
        finally:
            now = time.perf_counter()
            self._hold(now, -1)
        self.finished.append((now, time.process_time(), completion.completion_tokens))
        return completion

    def _hold(self, now: float, more: int) -> None:
        self.held.append((now, (self.held[-1][1] if self.held else 0) + more))

    def seconds_below(self, count: int, end: float) -> float:
        """Seconds to a time in which fewer requests than `count` were at the engine, since the first one."""
        until = [*(at for at, _ in self.held[1:]), end]
        spans = zip(self.held, until, strict=False)
        return sum(max(0.0, min(then, end) - at) for (at, requests), then in spans if requests < count)

    async def score(self, request: ScoreRequest) -> Scores:
        """Ask the engine."""
        return await self.engine.score(request)

    async def close(self) -> None:
        """The engine belongs to the benchmark."""


@dataclass(frozen=True)
class Side:
    """One run. Seconds; tokens are those of completions.

    Attributes:
        startup: loading the engine.
        steady: from the first request until fewer than `cap` episodes (or requests) were unfinished.
        drain: from there to the end.
        idle: of `steady`, without any request at the engine.
        starved: of `steady`, with fewer than `cap` of them there.
        tokens, requests: that came back in `steady`.
        rate: tokens a second in `steady`.
        cpu_rate: tokens a CPU second of this process in `steady`: what it does, whatever else the machine does.
    """

    startup: float
    steady: float
    drain: float
    idle: float
    starved: float
    requests: int
    tokens: int
    rate: float
    cpu_rate: float


def side(recorder: Recorder, startup: float, few: float, cap: int) -> Side:
    """A run whose unfinished episodes or requests fell below the cap at time `few`."""
    inside = [tokens for at, _, tokens in recorder.finished if at <= few]
    last, steady = recorder.finished[-1][0], few - recorder.begun
    cpu = recorder.finished[len(inside) - 1][1] - recorder.cpu
    return Side(
        startup=startup,
        steady=steady,
        drain=max(last - few, 0.0),
        idle=recorder.seconds_below(1, few),
        starved=recorder.seconds_below(cap, few),
        requests=len(inside),
        tokens=sum(inside),
        rate=sum(inside) / steady,
        cpu_rate=sum(inside) / cpu if cpu else 0.0,
    )


@dataclass
class Trial:
    """What both sides have in common."""

    config: Config
    section: EngineSection
    model: ModelSection
    cap: int
    folder: Path

    def start(self) -> tuple[Recorder, float]:
        """A fresh engine, which remembers no prompt, and the seconds it took."""
        begun = time.perf_counter()
        engine = build_engine(self.section, self.model, self.folder)
        return Recorder(engine), time.perf_counter() - begun

    async def play(self, number: int) -> tuple[Side, list[Request]]:
        """The stage itself, with its journal."""
        recorder, startup = self.start()
        ends: list[float] = []

        def report(state: ProgressState) -> None:
            if state.done:
                ends.append(time.perf_counter())

        journal = RequestJournal(self.folder / f"{number}.journal")
        inputs = Inputs(adapters={"policy": None})
        roles = RoleClient(
            self.config, "rollout", 0, inputs.adapters, self.folder, journal, {"local": recorder}
        )
        progress = Progress("rollout", report)
        algorithm = algorithm_of(self.config)
        ctx = StageContext(self.config, algorithm, "rollout", 0, inputs, roles, progress=progress)
        output = await rollout.STAGE.run(ctx)
        await recorder.engine.close()
        journal.close(remove=True)
        failed = [row for row in output.tables["episodes"] if row.error is not None]
        if failed:
            raise RuntimeError(f"{len(failed)} episodes failed: {failed[0].error}")
        return side(recorder, startup, ends[-self.cap], self.cap), recorder.asked

    async def replay(self, asked: Sequence[Request]) -> Side:
        """The recorded requests, all at once."""
        recorder, startup = self.start()
        await asyncio.gather(*[recorder.generate(request) for request in asked])
        await recorder.engine.close()
        return side(recorder, startup, recorder.finished[-self.cap][0], self.cap)


async def measure(trial: Trial, repeats: int) -> tuple[list[Side], list[Side]]:
    """Alternate the two sides."""
    played, replayed = [], []
    for number in range(repeats):
        one, asked = await trial.play(number)
        played.append(one)
        replayed.append(await trial.replay(asked))
    return played, replayed


def middle(sides: Sequence[Side]) -> dict[str, float]:
    """Medians of every figure."""
    return {name: statistics.median(asdict(s)[name] for s in sides) for name in asdict(sides[0])}


def main(
    backend: Annotated[str, typer.Option(help="transformers or vllm")] = "transformers",
    config: Annotated[str, typer.Option(help="its environment and policy are played")] = CONFIG,
    episodes: Annotated[int, typer.Option(help="at least 8 times the cap")] = 128,
    cap: Annotated[int, typer.Option(help="requests computed at once")] = 16,
    max_steps: Annotated[int, typer.Option(help="turns an episode has at most")] = 5,
    environment_ms: Annotated[float, typer.Option(help="mean delay of a step")] = 300.0,
    repeats: Annotated[int, typer.Option(help="of both sides")] = 3,
) -> None:
    """Measure rollout_efficiency."""
    if episodes < 8 * cap:
        raise typer.BadParameter(f"--episodes {episodes} is less than 8 times --cap {cap}")
    loaded = load_config(config)
    own = loaded.environment
    options = {"name": own.name, "options": own.options, "milliseconds": environment_ms}
    # All of them the policy's, from the first iteration on.
    played = {"episodes": episodes, "first_episodes": None, "uniform_until": 0, "max_steps": max_steps}
    changes = {
        "environment": own.model_copy(
            update={"name": "benchmarks.inference.rollout:Delayed", "options": options}
        ),
        "rollout": loaded.rollout.model_copy(update=played),
        "roles": loaded.roles.model_copy(
            update={"policy": loaded.roles.policy.model_copy(update={"engine": "local"})}
        ),
    }
    section = EngineSection(backend=backend, max_batch=cap)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as folder:
        model = loaded.model.model_copy(update={"dtype": choose_dtype(loaded.model).dtype})
        trial = Trial(loaded.model_copy(update=changes), section, model, cap, Path(folder))
        rollouts, replays = asyncio.run(measure(trial, repeats))
    sides = {f"{own.name}, rollout": middle(rollouts), f"{own.name}, replay": middle(replays)}
    ratio = middle(rollouts)["rate"] / middle(replays)["rate"]
    name = "rollout_efficiency"
    if backend != "transformers" or config != CONFIG:
        name += f"_{backend}_{own.name}"
    checks = [check(name, ratio, ">=", BAR)]
    print_figures(f"{backend}, cap {cap}, {episodes} episodes, {environment_ms:g} ms a step", sides)
    every = {"rollout": [asdict(s) for s in rollouts], "replay": [asdict(s) for s in replays]}
    finish("rollout", "Rollouts that wait for their environment", checks, **{f"sides of {name}": every})


if __name__ == "__main__":
    typer.run(main)
