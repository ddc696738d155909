"""The commands that write what a training stage trained on, for other trainers."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.options import FAILED, Data, Run, fail, load, open_store, usable_config

File = Annotated[Path, typer.Argument(metavar="FILE", help="a new file, .jsonl or .parquet")]
Iteration = Annotated[int | None, typer.Option(help="iteration; else the newest that has it", min=0)]


def export_critic_sft(file: File, iteration: Iteration = None, run: Run = None, data: Data = None) -> None:
    """Write the rows the critic was fine-tuned on as chat rows of prompt and completion, for TRL's SFTTrainer."""
    _export("critic-sft", file, iteration, run, data)


def export_policy_distillation(
    file: File, iteration: Iteration = None, run: Run = None, data: Data = None
) -> None:
    """Write the rows the policy was fine-tuned on as chat rows of prompt and completion, for TRL's SFTTrainer."""
    _export("policy-distillation", file, iteration, run, data)


def _export(stage: str, file: Path, iteration: int | None, run: str | None, data: Path | None) -> None:
    from storage.store import StoreError
    from tasks.chat.messages import RequestError
    from tasks.engines.models import ModelError
    from tasks.export.policy import ExportError
    from tasks.export.rows import export_rows
    from tasks.runtime.stage import StageFailed

    with usable_config():
        try:
            count = export_rows(open_store(data), load(None, run).run, stage, file, iteration)
        except (ExportError, StoreError, StageFailed, ModelError, RequestError) as error:
            fail(str(error), FAILED)
        except OSError as error:
            fail(f"{file}: can't be written ({error.strerror})", FAILED)
    typer.echo(f"{file}: {count} rows of {stage}")
