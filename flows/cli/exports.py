"""The commands that write what was trained, or what to train on, and `nlac play`."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.options import (
    FAILED,
    USAGE,
    AllowImport,
    Data,
    PolicyOf,
    Run,
    chosen_run,
    fail,
    known_run,
    load,
    open_store,
    say,
)

app = typer.Typer(no_args_is_help=True, help="Write what was trained, or trained on, for use outside.")
RowsFile = Annotated[Path, typer.Argument(metavar="FILE", help="a new file, .jsonl or .parquet")]
RowsOf = Annotated[int | None, typer.Option(help="iteration; else the newest that has it", min=0)]


class Weights(StrEnum):
    """Type of a checkpoint's weights."""

    float32 = "float32"
    bfloat16 = "bfloat16"


class Demonstrated(StrEnum):
    """What demonstrations are of; the name of their module in `tasks.datasets`."""

    guess_number = "guess_number"
    line_walk = "line_walk"


@app.command("policy")
def export_policy(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="an empty folder, or one to be made")],
    merge: Annotated[
        bool, typer.Option("--merge", help="a plain checkpoint with its tokenizer, not an adapter")
    ] = False,
    dtype: Annotated[
        Weights, typer.Option(help="of merged weights; bfloat16 rounds away much of what an adapter learnt")
    ] = Weights.float32,
    iteration: PolicyOf = None,
    run: Run = None,
    data: Data = None,
) -> None:
    """Write the policy as a peft adapter, or merged as a checkpoint that transformers and vLLM load."""
    from tasks.export.policy import export_policy as write
    from tasks.export.policy import find_policy

    store = open_store(data)
    policy = find_policy(store, chosen_run(store, run), iteration)
    try:
        write(policy, folder, merge=merge, dtype=dtype.value)
    except OSError as error:
        fail(f"{folder}: can't be written ({error.strerror})", FAILED)
    version = policy.adapter.version if policy.adapter else "the untrained model"
    say(f"{folder}: {version} as a {'checkpoint' if merge else 'peft adapter'}")


@app.command("critic-sft")
def export_critic_sft(file: RowsFile, iteration: RowsOf = None, run: Run = None, data: Data = None) -> None:
    """Write the rows the critic was fine-tuned on as chat rows of prompt and completion, for TRL's SFTTrainer."""
    _export_rows("critic-sft", file, iteration, run, data)


@app.command("policy-distillation")
def export_policy_distillation(
    file: RowsFile, iteration: RowsOf = None, run: Run = None, data: Data = None
) -> None:
    """Write the rows the policy was fine-tuned on as chat rows of prompt and completion, for TRL's SFTTrainer."""
    _export_rows("policy-distillation", file, iteration, run, data)


def _export_rows(stage: str, file: Path, iteration: int | None, run: str | None, data: str | None) -> None:
    from tasks.export.rows import export_rows

    store = open_store(data)
    try:
        count = export_rows(store, chosen_run(store, run), stage, file, iteration)
    except OSError as error:
        fail(f"{file}: can't be written ({error.strerror})", FAILED)
    say(f"{file}: {count} rows of {stage}")


def play(
    task: Annotated[str | None, typer.Option(help="task id; else an eval task, chosen by the seed")] = None,
    seed: Annotated[int | None, typer.Option(help="root of the policy's random stream", min=0)] = None,
    iteration: PolicyOf = None,
    run: Run = None,
    data: Data = None,
    allow_import: AllowImport = None,
) -> None:
    """Play one episode with the policy and print each turn as it is made."""
    import asyncio

    from tasks.export.play import play as play_once
    from tasks.export.policy import find_policy

    store = open_store(data)
    name = known_run(store, load(None, run).run)
    if not any(store.config_path(name, number).exists() for number in store.iterations(name)):
        fail(f"run '{name}' holds imported episodes alone, so it has no policy yet; train one first", USAGE)
    policy = find_policy(store, name, iteration)
    asyncio.run(play_once(policy, task, seed, cache_dir=store.cache_dir, show=_echo))


def _echo(text: str) -> None:
    say(text)
    sys.stdout.flush()


def demonstrate(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Parquet file to write; must not be there yet")
    ],
    of: Annotated[
        Demonstrated, typer.Option(help="TextArena's GuessTheNumber, or the line walk")
    ] = Demonstrated.guess_number,
    rows: Annotated[int, typer.Option(min=1, help="demonstrations of each of the five roles")] = 160,
    seed: Annotated[int, typer.Option(min=0, help="of the random play")] = 0,
) -> None:
    """Write demonstrations for a warm start, told from random play."""
    from importlib import import_module

    if file.exists():
        fail(f"{file}: is there already, and nothing is overwritten; give another name, or remove it", USAGE)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        import_module(f"tasks.datasets.{of.value}").demonstrations(rows, seed).write_parquet(file)
    except OSError as error:
        fail(f"{file}: can't be written ({error.strerror})", FAILED)
    say(f"{file}: {rows} demonstrations each of policy, predict, bootstrap, evaluate and refine")
