"""Hostile completions through every parser of model texts and every environment's step: nothing may raise.

python -m benchmarks.reliability.fuzz [--completions 100000] [--seed 0]
python -m benchmarks.reliability.fuzz --completions 2000 --branches    also: is every branch of the parsers reached?

A parser may refuse a text with the one exception that it documents. An environment answers every action with a step; a
game of TextArena may fail by its own fault, which ends that episode alone. The verifiers of mathematics and
reasoning-gym start a process per answer, and a browser takes long for a step, so they get one completion in VERIFIED;
games that take long to open get one in some more.
"""

import asyncio
import json
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from benchmarks.reliability.findings import FOLDER, write_result
from benchmarks.reliability.mutations import completions
from benchmarks.reliability.parsers import NUMBER, PARSERS
from benchmarks.reliability.players import players, verifiers
from tasks.chat.response_parser import split_reasoning
from tasks.environments.base import EnvironmentModelUnreadable, EpisodeFailed
from tasks.environments.logged import Logged
from tasks.environments.textarena.opponent import Opponent
from tasks.environments.twenty_questions import TwentyQuestions
from tasks.environments.twenty_questions.oracles import ask_oracle
from tasks.foreign_json import whole_text

CHUNK = 5_000
EXAMPLES = 5  # inputs kept of each way to fail


@dataclass
class Outcome:
    """What became of the completions.

    Attributes:
        read, refused: how often a parser gave a result, or refused with its own exception.
        episodes_failed: by a game's own fault.
        raised: where, with what and in which line -> the completions.
    """

    read: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    episodes_failed: Counter[str] = field(default_factory=Counter)
    raised: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> "Outcome":
        """What a file holds."""
        counted = {name: Counter(kept.get(name, {})) for name in ("read", "refused", "episodes_failed")}
        return cls(**counted, raised=dict(kept.get("raised", {})))

    def add(self, other: "Outcome") -> None:
        """Count another's too."""
        for name in ("read", "refused", "episodes_failed"):
            getattr(self, name).update(getattr(other, name))
        for where, texts in other.raised.items():
            self.raised[where] = [*self.raised.get(where, []), *texts][:EXAMPLES]

    @contextmanager
    def watching(self, name: str, text: str, *refusals: type[Exception]) -> Iterator[None]:
        """Count what becomes of one text."""
        try:
            yield
            self.read[name] += 1
        except refusals:
            self.refused[name] += 1
        except EpisodeFailed as failure:
            self.episodes_failed[name] += 1
            if type(failure) is not EpisodeFailed:
                self._raised(name, failure, text)
        except Exception as error:  # noqa: BLE001 - each is a finding
            self._raised(name, error, text)

    def _raised(self, name: str, error: Exception, text: str) -> None:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{name}: {type(error).__name__} in {Path(last.filename).name}:{last.name}"
        self.raised[where] = [*self.raised.get(where, []), text][:EXAMPLES]


async def fuzz(texts: Iterable[str], *, verify: bool = True) -> Outcome:
    """Put texts through everything.

    Args:
        texts: completions as an engine gives them.
        verify: also in the environments whose answers another process verifies.
    """
    outcome, worlds = Outcome(), players() | (verifiers() if verify else {})
    thing, logged = TwentyQuestions().things[0], Logged()
    before = ""
    for number, completion in enumerate(texts):
        text = whole_text(completion)  # as the role client does with all that an engine gives
        answer = split_reasoning(text)[1].strip()
        for name, (parse, refusals) in PARSERS.items():
            with outcome.watching(name, completion, *refusals):
                parse(text if name == "hidden reasoning" else answer, before)
        with outcome.watching("an oracle's answer", completion, EnvironmentModelUnreadable):
            await ask_oracle(_says(answer), thing, "Is it big?", 1)
        with outcome.watching("an opponent's move", completion):
            await Opponent(_says(answer), NUMBER).move("Your turn.")
        with outcome.watching("logged", completion):
            logged.accepts(answer)
        for name, player in worlds.items():
            if number % player.every == 0:
                player.said = before
                with outcome.watching(name, completion, EnvironmentModelUnreadable):
                    await player.play(answer)
        before = answer
    return outcome


def _says(text: str) -> Any:
    async def ask(messages: object, *, request_key: str, regex: str | None = None) -> str:
        return text

    return ask


MEASURED = tuple(
    f"tasks.{name}"
    for name in (
        "chat.response_parser", "environments.forecast", "environments.frozen_lake.text", "environments.guess_number",
        "environments.line_walk.text", "environments.logged", "environments.miniwob.actions",
        "environments.tau_bench.calls", "environments.textarena.opponent", "environments.twenty_questions.names",
        "environments.twenty_questions.oracles", "environments.twenty_questions.questions",
        "foreign_json", "prompting.native_calls", "text.clauses", "text.discounting", "text.formats", "text.leaks",
        "text.transcript",
    )
)  # fmt: skip
"""The modules that read what a model wrote."""


@contextmanager
def branches(found: dict[str, Any]) -> Iterator[None]:
    """Measure the branches of MEASURED: module -> how many it has, and those that were not taken, as "line -> line"."""
    from coverage import Coverage

    measuring = Coverage(
        data_file=None, branch=True, source_pkgs=list(MEASURED), config_file=False, messages=False
    )
    with measuring.collect(), TemporaryDirectory() as folder:
        yield
    with TemporaryDirectory() as folder:
        measuring.json_report(outfile=f"{folder}/branches.json")
        files = json.loads(Path(folder, "branches.json").read_text())["files"]
    for name in MEASURED:
        path = sys.modules[name].__file__ or ""
        (report,) = (of for file, of in files.items() if path.endswith(file))
        found[name] = {
            "branches": report["summary"]["num_branches"],
            "missing": [f"{a} -> {b}" for a, b in report["missing_branches"]],
        }


def main(
    number: Annotated[int, typer.Option("--completions", min=1)] = 100_000,
    seed: int = 0,
    measure: Annotated[bool, typer.Option("--branches", help="measure branches, without going on")] = False,
    out: Annotated[Path, typer.Option(help="folder of the result")] = FOLDER,
) -> None:
    """Fuzz, print what was found, and write fuzz.json after each CHUNK, from where the next call with this seed goes
    on; or, with --branches, fuzz_branches.json."""
    if measure:
        reached: dict[str, Any] = {}
        with branches(reached):
            found = asyncio.run(fuzz(completions(number, seed)))
        path = write_result("fuzz_branches", {"completions": number, "seed": seed, "modules": reached}, out)
    else:
        found, path = _in_chunks(number, seed, out), out / "fuzz.json"
        reached = {}
    missing = [f"{name}: {branch}" for name, of in reached.items() for branch in of["missing"]]
    for line_ in [*found.raised, *(f"not reached: {branch}" for branch in missing)]:
        print(line_)
    print(f"{number} completions; written to {path}")
    if found.raised or missing:
        raise SystemExit(f"{len(found.raised)} ways to fail, {len(missing)} branches not reached")


def _in_chunks(number: int, seed: int, out: Path) -> Outcome:
    """Fuzz what an earlier call has left."""
    kept = json.loads((out / "fuzz.json").read_text()) if (out / "fuzz.json").exists() else {}
    kept = kept if kept.get("seed") == seed else {}
    found, done, seconds = Outcome.of(kept), kept.get("completions", 0), kept.get("seconds", 0.0)
    while done < number:
        began = time.process_time()
        size = min(CHUNK, number - done)
        texts = completions(size, seed * 1_000_003 + done, plain_first=not done)
        found.add(asyncio.run(fuzz(texts)))
        done, seconds = done + size, round(seconds + time.process_time() - began, 1)
        content = {"completions": done, "seed": seed, "seconds": seconds, **vars(found)}
        write_result("fuzz", content, out)
        print(f"{done} completions in {seconds} s of CPU time, {len(found.raised)} ways to fail", flush=True)
    return found


if __name__ == "__main__":
    typer.run(main)
