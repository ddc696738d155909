"""One iteration of SmolLM2-135M in every environment: does it run, and what comes of it?

    python -m benchmarks.small_model [NAME ...] [--logged FILE] [--data DIR]

For each configuration named (all, by default) it runs `nlac iterate --config configs/NAME.yaml`, the command of
README's table, and reads what was committed: a row of the table each. `logged` imports FILE first (nlac import,
openai-chat). Figures go to benchmarks/out/small_model.json; started again, what is committed already is reused. No
bars but one: the iteration ends.
"""

import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import polars as pl
import typer

from benchmarks.checks import OUT, check, machine, write_checks
from schemas.config import Config
from schemas.load import PROJECT_ROOT, load_config
from storage.store import Store
from tasks.pipeline import stages_of

NAMES = (
    "default", "textarena", "twenty_questions_smollm2", "math_smollm2", "reasoning_gym_smollm2",
    "frozen_lake_smollm2", "tau_bench_smollm2", "logged",
)  # fmt: skip


@dataclass
class Measured:
    """An iteration.

    Attributes:
        name: the configuration's.
        transitions: played for training.
        invalid: share of them whose action the environment could not take.
        targets, malformed: Bellman targets, and the share of them without their format.
        distilled: refined actions that the policy was trained on.
        success: of the evaluation, with its interval, as text; empty where nothing is played.
        minutes: of all stages.
    """

    name: str
    transitions: int
    invalid: float
    targets: int
    malformed: float
    distilled: int
    success: str
    minutes: float


def measure(store: Store, config: Config, name: str) -> Measured:
    """Read an iteration's tables."""
    made = {stage: store.committed(config.run, stage, 0) for stage in stages_of(config, 0)}
    played = store.committed(config.run, "rollout", 0)
    assert played is not None

    def table(stage: str, name: str) -> pl.DataFrame:
        committed = made[stage]
        assert committed is not None, f"{stage} is not committed"
        return committed.scan(name).collect()

    transitions = played.scan("transitions").filter(split="train").collect()
    targets = table("bellman-targets", "bellman_targets")
    row = table("evaluation", "evaluations").row(0, named=True)
    success = (
        "" if row["success_rate"] is None else "{success_rate:.2f} ({success_low:.2f}-{success_high:.2f})"
    )
    return Measured(
        name,
        transitions.height,
        1 - transitions["action_valid"].cast(pl.Float64).mean(),  # type: ignore[operator]
        targets.height,
        targets["malformed"].cast(pl.Float64).mean(),  # type: ignore[arg-type]
        table("refinement", "refinements")["distil"].sum(),
        success.format(**row),
        sum(done.manifest.seconds for done in made.values() if done) / 60,
    )


def nlac(*arguments: str) -> bool:
    """Run the command as a user does; whether it ended well."""
    return subprocess.run([sys.executable, "-m", "flows.cli", *arguments], cwd=PROJECT_ROOT).returncode == 0


def main(
    names: Annotated[list[str] | None, typer.Argument(help="configurations, without .yaml")] = None,
    logged: Annotated[Path | None, typer.Option(help="conversations to import, format openai-chat")] = None,
    data: Annotated[Path, typer.Option(help="data root")] = OUT / "small_model",
) -> None:
    """Run and read an iteration of each."""
    found: list[Measured] = []
    ended = {}
    for name in names or NAMES:
        file = f"configs/{name}.yaml"
        config = load_config(file)
        if name == "logged":
            if logged is None:
                print("logged: left out, since no --logged FILE was given", file=sys.stderr)
                continue
            nlac("import", str(logged), "--format", "openai-chat", "--run", config.run, "--data", str(data))
        ended[name] = nlac("iterate", "--config", file, "--iteration", "0", "--data", str(data))
        if ended[name]:
            found.append(measure(Store(data), config, name))
    print(
        f"\n{machine()}\n\n| configuration | transitions | invalid | targets | malformed | distilled | success | min |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for m in found:
        print(
            f"| `{m.name}` | {m.transitions} | {m.invalid:.2f} | {m.targets} | {m.malformed:.2f} | {m.distilled} "
            f"| {m.success} | {m.minutes:.1f} |"
        )
    checks = [check(f"{name}_ends", done, "==", 1) for name, done in ended.items()]
    print(f"written to {write_checks('small_model', checks, iterations=[asdict(m) for m in found])}")
    raise typer.Exit(not all(ended.values()))


if __name__ == "__main__":
    typer.run(main)
