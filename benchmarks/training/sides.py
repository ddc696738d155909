"""One side of the comparison of trainers, in a process of its own: `python -m benchmarks.training.sides JOB RESULT`.

Both get the same token ids, batches, LoRA adapter to start from, learning rate and number of steps. The job is JSON
(see `benchmarks.training.versus_trl`). So is the result: seconds and loss of each step, and the process's largest
resident memory.
"""

import json
import resource
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.training.chats import make_chats
from schemas.config import ModelSection, TrainingSection
from tasks.chat.tokenizers import load_chat_tokenizer
from tasks.datasets.example import Example
from tasks.engines.models import resolve_model
from tasks.lean_imports import lean_transformers
from tasks.training.batches import plan_batches
from tasks.training.data import Encoded, encode
from tasks.training.job import Rows, Start, TrainingJob

SEED = 0


def batches(job: Mapping[str, Any], model: ModelSection) -> tuple[list[Example], list[list[Encoded]]]:
    """The chats, weighted so that a batch's loss is the mean over its label tokens, as TRL's is, and the rows of each
    optimizer step."""
    tokenizer = load_chat_tokenizer(resolve_model(model), model.revision)
    examples = make_chats(job["chats"], tokenizer)
    rows = [encode(example, tokenizer, model.context_length) for example in examples]
    plan = plan_batches(range(len(rows)), job["batch_rows"], 1, SEED)
    for numbers in plan:
        mean = sum(len(rows[n].label_ids) for n in numbers) / len(numbers)
        for n in numbers:
            examples[n] = replace(examples[n], weight=len(rows[n].label_ids) / mean)
    return examples, [sorted((rows[n] for n in numbers), key=lambda row: row.tokens) for numbers in plan]


def ours(job: Mapping[str, Any], model: ModelSection, out: Path) -> dict[str, Any]:
    """A training stage's own loop."""
    with lean_transformers():
        from tasks.training.trainer import train

    examples, _ = batches(job, model)
    ends: list[float] = []
    training = TrainingJob(
        model=model,
        section=TrainingSection(
            batch_rows=job["batch_rows"], micro_batch_rows=job["micro_batch"], learning_rate=job["rate"]
        ),
        rows=Rows(examples),
        seed=SEED,
        out=out,
        start=Start(Path(job["adapter"])),
    )
    result = train(training, lambda *_: ends.append(time.perf_counter()))
    return {"losses": [step.loss for step in result.steps], "ends": ends}


def trl(job: Mapping[str, Any], model: ModelSection, out: Path) -> dict[str, Any]:
    """TRL's SFTTrainer, over the same rows in the same order."""
    import torch
    from datasets import Dataset
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    ends = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends.append(time.perf_counter())

    rows = [row for batch in batches(job, model)[1] for row in batch]
    packing, name = job["packing"], str(resolve_model(model))
    tokens = sum(row.tokens for row in rows) / len(rows)
    base = AutoModelForCausalLM.from_pretrained(
        name, dtype=getattr(torch, job["weights"]), attn_implementation=job["attention"]
    )
    trainer = SFTTrainer(
        model=PeftModel.from_pretrained(base, job["adapter"], is_trainable=True),
        processing_class=load_chat_tokenizer(name).tokenizer,
        train_dataset=Dataset.from_list(
            [
                {
                    "input_ids": [*row.prompt_ids, *row.label_ids],
                    "completion_mask": [0] * len(row.prompt_ids) + [1] * len(row.label_ids),
                }
                for row in rows
            ]
        ),
        args=SFTConfig(
            output_dir=str(out),
            per_device_train_batch_size=1 if packing else job["micro_batch"],
            # As many tokens a step: a pack holds as many rows as a micro-batch.
            gradient_accumulation_steps=max(1, job["batch_rows"] // job["micro_batch"]),
            completion_only_loss=True,
            packing=packing,
            max_length=round(tokens * job["micro_batch"]) if packing else None,
            bf16=job["autocast"],
            gradient_checkpointing=job["gradient_checkpointing"],
            train_sampling_strategy="sequential",
            num_train_epochs=1,
            learning_rate=job["rate"],
            lr_scheduler_type="constant",
            optim="adamw_torch_fused",
            max_grad_norm=1.0,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            seed=SEED,
        ),
        callbacks=[Clock()],
    )
    trainer.train()
    return {"losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry], "ends": ends}


def main(job_file: Path, result_file: Path) -> None:
    """Run the side that the job names."""
    import torch

    job = json.loads(job_file.read_text())
    torch.set_num_threads(job["threads"])
    model = ModelSection(name=job["model"], dtype=job["dtype"], device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        result = {"ours": ours, "trl": trl}[job["side"]](job, model, Path(folder))
    ends = result.pop("ends")
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    planned = batches(job, model)[1]
    tokens = [sum(row.tokens for row in batch) for batch in planned]
    result["labels"] = sum(len(row.label_ids) for batch in planned for row in batch)
    result |= {
        "seconds": [after - before for before, after in pairwise(ends)],
        "tokens": tokens,
        "peak_gib": kilobytes / 2**20,
    }
    result_file.write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
