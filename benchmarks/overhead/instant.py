"""What takes no time, in place of a model: a configuration whose roles are rules, and a trainer that does not train.

The trainer leaves what the real one leaves, by form and size: adapter, target and optimizer state of the default
model's LoRA (4,884,480 parameters), so that digests, checks and commits do their full work.
"""

import json
import math
import sys
from types import ModuleType

import numpy as np
from safetensors.numpy import save_file

from schemas.config import Config, RolesSection
from schemas.load import load_config
from tasks.imports import allow_imports
from tasks.training.job import OnStep, TrainingJob
from tasks.training.records import StepRecord, TrainingResult

allow_imports(["tests"])  # here and in the stages' processes
PLAYER = "tests.support.rules:number_game"
PARAMETERS = 4_884_480
TRAINER = "tasks.training.trainer"


def instant_config(run: str, model: str | None = None) -> Config:
    """The default configuration, every size as it is, its roles played by rules.

    Args:
        run: name of the run.
        model: whose tokenizer prompts are measured with; None: the default one.
    """
    config = load_config().model_dump() | {"run": run}
    config["model"]["dtype"] = "float32"  # of weights that nobody loads; auto would probe
    config["engines"] = {"rules": {"backend": "scripted", "rules": PLAYER}}
    for role in RolesSection.model_fields:
        config["roles"][role]["engine"] = "rules"
    if model is not None:
        config["model"]["name"] = model
    return Config.model_validate(config)


def train(job: TrainingJob, on_step: OnStep) -> TrainingResult:
    """As `tasks.training.trainer.train`, with zeros for weights and made-up losses."""
    total = max(1, math.ceil(job.section.epochs * len(job.rows.main) / job.section.batch_rows))
    steps = [
        StepRecord(
            n,
            1.0,
            1.0,
            1.0,
            None,
            None,
            None,
            job.section.learning_rate,
            1.0,
            job.section.batch_rows,
            100,
            1000,
        )
        for n in range(total)
    ]
    for step in steps:
        on_step(step, total)
    zeros = np.zeros(PARAMETERS, dtype=np.float32)
    for kind in ("adapter",) if job.tau is None else ("adapter", "target"):
        folder = job.out / kind
        folder.mkdir()
        (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 16}))
        save_file({"weights": zeros}, folder / "adapter_model.safetensors")
    (job.out / "optimizer.pt").write_bytes(bytes(2 * zeros.nbytes))
    origins = (job.rows.main, *(origin.examples for origin in job.rows.mixed))
    rows = [example.row_id for examples in origins for example in examples]
    return TrainingResult(
        steps=steps,
        scores={e.row_id: (-1.0, -1.0) for e in job.rows.main if e.scored_segment is not None},
        uses=dict.fromkeys(rows, 1),
        prompt_tokens=dict.fromkeys(rows, 100),
        label_tokens=dict.fromkeys(rows, 10),
        too_long={},
        target_moved=None if job.tau is None else 1.0 - (1.0 - job.tau) ** total,
        micro_batch_rows=job.section.micro_batch_rows,
    )


def install_trainer() -> None:
    """Put the instant trainer in the real one's place, in this process."""
    module = ModuleType(TRAINER)
    module.train = train  # type: ignore[attr-defined]
    sys.modules[TRAINER] = module
