"""What processes of the program spend before they do anything: stages, and the command `nlac`.

python -m benchmarks.start_up [--repeats 3]

Each line is a process of its own that imports what the line says, or a command; its CPU seconds (user and system), the
fewest of some repeats, which depend little on what else the machine does. A stage of an iteration pays for the first
three lines, and for one of the next two where its prompts have to fit a context window or its engine is in the process;
MLflow is paid for once an iteration, by its own process, or by a stage that runs alone.
"""

import json
import os
import shlex
import subprocess
import sys
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.checks import OUT, machine
from schemas.load import PROJECT_ROOT, load_config
from tasks.engines.models import resolve_model

STAGE = "import prefect.engine, prefect.flow_engine; import flows.stages"
ENVIRONMENT = "from tasks.environments import make_environment; from schemas.load import load_config; "
PIECES = {
    "Prefect's engine": "import prefect.engine, prefect.flow_engine",
    "  and the program's stages": STAGE,
    "  and the default environment": f"{STAGE}; {ENVIRONMENT}make_environment(load_config().environment)",
    "the default model's tokenizer": (
        "from tasks.engines.chat import load_chat_tokenizer; load_chat_tokenizer({model!r})"
    ),
    "engine and trainer in process, imports": (
        "from tasks.lean_imports import lean_transformers\nwith lean_transformers():\n"
        "    import tasks.engines.transformers_engine, tasks.training.trainer"
    ),
    "MLflow": "from mlflow import MlflowClient; MlflowClient('sqlite:////{folder}/mlflow.db')",
}
COMMANDS = ("--help", "sql", "sql 'select 1'", "config show", "config check", "verify", "down")


def cpu_seconds(command: list[str], folder: str) -> float:
    """User and system seconds of a command, its children included; it must succeed."""
    environment = {**os.environ, "PYTHONPATH": str(PROJECT_ROOT), "NLAC_DATA": folder}
    process = subprocess.Popen(
        command, cwd=PROJECT_ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed; run it to see why")
    return used.ru_utime + used.ru_stime


def main(repeats: Annotated[int, typer.Option(min=1, help="of each; the fastest counts")] = 3) -> None:
    """Measure, print, write benchmarks/out/start_up.json."""
    model = str(resolve_model(load_config().model))
    with TemporaryDirectory() as folder:
        work = {
            name: [sys.executable, "-c", code.replace("{model!r}", repr(model)).replace("{folder}", folder)]
            for name, code in PIECES.items()
        }
        work |= {
            f"nlac {arguments}": [sys.executable, "-m", "flows.cli", *shlex.split(arguments)]
            for arguments in COMMANDS
        }
        seconds = {
            name: min(cpu_seconds(command, folder) for _ in range(repeats)) for name, command in work.items()
        }
    table = Table("process", "CPU seconds", title="before anything is done")
    for name, spent in seconds.items():
        table.add_row(name, f"{spent:.2f}")
    Console().print(table)
    OUT.mkdir(exist_ok=True)
    content = {"machine": machine(), "checks": [], "cpu_seconds": seconds}
    (OUT / "start_up.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
