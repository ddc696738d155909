"""The commands about the trained policy: write it for use outside, play an episode with it."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.options import FAILED, Data, PolicyOf, Run, fail, load, open_store, usable_config


class Weights(StrEnum):
    """Type of a checkpoint's weights."""

    float32 = "float32"
    bfloat16 = "bfloat16"


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
    from storage.store import StoreError
    from tasks.engines.models import ModelError
    from tasks.export.policy import ExportError, find_policy
    from tasks.export.policy import export_policy as write

    with usable_config():
        try:
            policy = find_policy(open_store(data), load(None, run).run, iteration)
            write(policy, folder, merge=merge, dtype=dtype.value)
        except (ExportError, StoreError, ModelError) as error:
            fail(str(error), FAILED)
        except OSError as error:
            fail(f"{folder}: can't be written ({error.strerror})", FAILED)
    version = policy.adapter.version if policy.adapter else "the untrained model"
    typer.echo(f"{folder}: {version} as a {'checkpoint' if merge else 'peft adapter'}")


def play(
    task: Annotated[str | None, typer.Option(help="task id; else an eval task, chosen by the seed")] = None,
    seed: Annotated[int | None, typer.Option(help="root of the policy's random stream", min=0)] = None,
    iteration: PolicyOf = None,
    run: Run = None,
    data: Data = None,
) -> None:
    """Play one episode with the policy and print it turn by turn."""
    import asyncio

    from storage.store import StoreError
    from tasks.chat.messages import RequestError
    from tasks.engines import EngineConfigError
    from tasks.environments import UnusableEnvironment
    from tasks.export.play import describe
    from tasks.export.play import play as play_once
    from tasks.export.policy import ExportError, find_policy
    from tasks.runtime.stage import StageFailed

    store = open_store(data)
    with usable_config():
        try:
            policy = find_policy(store, load(None, run).run, iteration)
            result = asyncio.run(play_once(policy, task, seed, cache_dir=store.cache_dir))
        except (
            ExportError,
            StoreError,
            StageFailed,
            RequestError,
            EngineConfigError,
            UnusableEnvironment,
        ) as error:
            fail(str(error), FAILED)
    for line in describe(result):
        typer.echo(line)
