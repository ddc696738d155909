"""Random YAML as a configuration: `nlac config check` ends with exit code 2 and a message, or it runs.

python -m benchmarks.reliability.random_yaml [--number 2000] [--runs 100] [--seed 0]

Shipped configurations with changed, added, renamed and lost fields, with changed characters, and YAML made to hurt, are
checked. So is a small configuration with such fields, and those that are accepted run an iteration: it is committed, or
a stage fails with a message of the program's own. A value that costs time by its size (a line of a million cells) is
what its author asked for, so sizes stay small.
"""

import asyncio
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
import yaml
from typer.testing import CliRunner

from benchmarks.reliability.findings import FOLDER, write_result
from benchmarks.reliability.small_run import run_config
from flows.cli.main import app
from schemas.load import DEFAULT_CONFIG, PROJECT_ROOT, ConfigError, dump_config, load_config
from storage.committed import StoreError
from storage.store import Store
from tasks.pipeline.checks import check_config
from tasks.pipeline.iterations import run_iteration
from tasks.runtime.stage import StageFailed

SECONDS = 30  # of CPU time, after which a check counts as one that never ends
HOSTILE = (
    "", "[", "{", "- a", "a: b: c", "\0", "\t", "!!python/object:os.system x", "? [a]\n: b", "{1: 2, null: 3}",
    "a: 2024-99-99", "seed: " + "9" * 4301, "run: \"\\ud83d\"", "run: ../up", "run: \"a\\nb\"", "run: " + "x" * 5000,
    "[" * 5000, "{a: " * 3000, "run: " + "[" * 500 + "]" * 500, "a: &a [*a]", "environment: &e {options: *e}",
    "environment: {options: &o {o: *o}}", "environment: {options: {game: \"\\ud83d\"}}", "environment: {name: ''}",
    "environment: {name: 'os:getcwd'}", "environment: {name: ':'}", "environment: {name: 'tasks.environments:'}",
    "environment: {options: {seed: .nan}}", "seed: .inf", "seed: 1e400", "engines: {}", "engines: {a: null}",
    "engines: {local: {backend: openai, base_url: 'http://[', model: m}}",
    "engines: {local: {backend: openai, base_url: \"http://\\ud83d/\", model: m}}",
    "engines: {local: {backend: scripted, rules: ':'}}", "roles: {all: null}", "roles: []", "roles: {policy: 3}",
    "model: {name: \"\\0\"}", "model: {name: ''}", "warm_start: {file: \"a\\0b\"}", "replay: {from_runs: [a, 3, null]}",
    "rollout: {max_steps: 0}", "critic: {learning_rate: .nan}", "improvement: {rounds: -1}", "run: default\nrun: other",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 300, 0.5, -0.5, 1.0, float("nan"), float("inf"), 1e-300, "", "x", "auto", "none",
    "é\u2028", "\ud83d", "../x", "/no/such", "tests:x", [], [1], ["a", None], {}, {"x": 1}, {"name": "x"}, b"\xff",
)  # fmt: skip


def configurations() -> list[dict[str, Any]]:
    """What ships, and the default with all its fields."""
    files = [DEFAULT_CONFIG, *sorted((PROJECT_ROOT / "configs" / "examples").glob("*.yaml"))]
    return [yaml.safe_load(dump_config(load_config())), *(yaml.safe_load(file.read_text()) for file in files)]


def texts(number: int, seed: int = 0) -> Iterator[str | bytes]:
    """So many YAML texts, those made to hurt first."""
    stream, shipped = Random(seed), configurations()
    yield from HOSTILE[:number]
    for index in range(number - len(HOSTILE)):
        content = _changed(stream.choice(shipped), stream)
        text = yaml.dump(content, allow_unicode=stream.random() < 0.5)
        if index % 3 == 0:
            at = stream.randrange(len(text) + 1)
            text = (
                text[:at]
                + stream.choice(("", "\n", ": ", "- ", "{", '"', "\0", "é", "&a ", "*a", "#", "!!int "))
                + text[at + 1 :]
            )
        yield text.encode("utf-8", "surrogatepass")


def _changed(content: dict[str, Any], stream: Random) -> dict[str, Any]:
    """A copy with some fields changed."""
    changed: dict[str, Any] = yaml.safe_load(yaml.safe_dump(content))
    for _ in range(1 + int(stream.expovariate(0.7))):
        _change(changed, stream)
    return changed


def _change(content: dict[str, Any], stream: Random) -> None:
    """Change a field, at any depth."""
    section = content
    while stream.random() < 0.6 and (
        inner := [value for value in section.values() if isinstance(value, dict)]
    ):
        section = stream.choice(inner)
    name = stream.choice([*section, "unknown"]) if section else "unknown"
    match stream.randrange(4):
        case 0:
            section.pop(name, None)
        case 1:
            section[stream.choice((f"{name}s", name.upper() if isinstance(name, str) else name, 3))] = (
                section.pop(name, None)
            )
        case _:
            section[name] = stream.choice(VALUES)


@contextmanager
def limited() -> Iterator[None]:
    """End what takes longer than SECONDS."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"not done after {SECONDS} s of CPU time")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def check(number: int, seed: int = 0) -> tuple[Counter[int], dict[str, str]]:
    """Check so many; gives the exit codes, and what ended otherwise: how -> the text."""
    codes: Counter[int] = Counter()
    wrong: dict[str, str] = {}
    with TemporaryDirectory(prefix="nlac-yaml-") as folder:
        file = Path(folder, "random.yaml")
        for text in texts(number, seed):
            file.write_bytes(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)
            with limited():
                done = CliRunner().invoke(
                    app, ["config", "check", str(file), "--elsewhere", "--data", f"{folder}/data"]
                )
            codes[done.exit_code] += 1
            said = done.output.strip()
            if done.exception is not None and not isinstance(done.exception, SystemExit):
                wrong.setdefault(_named(done.exception), str(text))
            elif done.exit_code not in (0, 2) or not said:
                wrong.setdefault(f"exit code {done.exit_code}: {said[:160]}", str(text))
    return codes, wrong


def run(number: int, seed: int = 0) -> tuple[Counter[str], dict[str, str]]:
    """Run so many that are accepted; gives how they ended, and what ended otherwise: how -> the text."""
    ended: Counter[str] = Counter()
    wrong: dict[str, str] = {}
    stream, small = Random(seed), run_config().model_dump(mode="json")
    while ended.total() + len(wrong) < number:
        text = yaml.dump(_changed(small, stream))
        with TemporaryDirectory(prefix="nlac-yaml-") as folder:
            file, store = Path(folder, "random.yaml"), Store(Path(folder, "data"))
            file.write_text(text, encoding="utf-8", errors="surrogatepass")
            try:
                config = load_config(file)
                check_config(config, store.root)
            except ConfigError:
                continue
            try:
                with limited():
                    asyncio.run(run_iteration(store, config))
                ended["finished"] += 1
            except (StageFailed, ConfigError, StoreError) as refusal:
                ended["a stage failed, with a message"] += 1
                print(f"{type(refusal).__name__}: {str(refusal)[:200]}", flush=True)
            except Exception as error:  # noqa: BLE001 - each is a finding
                wrong.setdefault(_named(error), text)
                print(_named(error), flush=True)
    return ended, wrong


def _named(error: BaseException) -> str:
    """What an exception is, where it was raised, and what it says."""
    where = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__} in {Path(where[-1].filename).name if where else ''}: {str(error)[:120]}"


def main(
    number: Annotated[int, typer.Option(min=1, help="that are checked")] = 2000,
    runs: Annotated[int, typer.Option(min=0, help="that are accepted, and run an iteration")] = 100,
    seed: int = 0,
    out: Annotated[Path, typer.Option(help="folder of the result")] = FOLDER,
) -> None:
    """Check and run random configurations, print what was found, and write random_yaml.json."""
    codes, wrong = check(number, seed)
    ended, also_wrong = run(runs, seed)
    wrong |= also_wrong
    counted = {"can be used": codes[0], "refused with exit code 2": codes[2], "run": dict(ended)}
    path = write_result("random_yaml", {"number": number, "seed": seed, **counted, "otherwise": wrong}, out)
    print(f"{number} configurations: {counted}; written to {path}")
    for how, text in wrong.items():
        print(f"{how}\n    {text[:300]!r}")
    if wrong:
        sys.exit(f"{len(wrong)} ways to end otherwise")


if __name__ == "__main__":
    typer.run(main)
