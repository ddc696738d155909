"""What a training stage leaves on disk, in either form, and the digest of its content.

    model.train: lora                  model.train: full
    folder/adapter_config.json         folder/config.json, generation_config.json
    folder/adapter_model.safetensors   folder/model.safetensors     all weights, float32

peft and transformers load them as they are. Imports no torch.
"""

import hashlib
import json
from pathlib import Path
from typing import Literal

from tasks.training.records import TrainingError

Form = Literal["lora", "full"]
CONFIG: dict[Form, str] = {"lora": "adapter_config.json", "full": "config.json"}
WEIGHTS: dict[Form, str] = {"lora": "adapter_model.safetensors", "full": "model.safetensors"}
# Configuration keys that say where and by what a file was written, not what the weights compute.
NOT_CONTENT = frozenset(
    {
        "base_model_name_or_path", "revision", "peft_version", "inference_mode", "auto_mapping",
        "_name_or_path", "transformers_version",
    }
)  # fmt: skip


def form_of(path: Path) -> Form:
    """Whether a folder holds a LoRA adapter or a full checkpoint.

    Raises:
        TrainingError: it holds neither.
    """
    for form in CONFIG:
        if (path / CONFIG[form]).is_file() and (path / WEIGHTS[form]).is_file():
            return form
    expected = " or ".join(f"{CONFIG[form]} and {WEIGHTS[form]}" for form in CONFIG)
    raise TrainingError(f"{path}: no adapter there ({expected} expected); run its stage again")


def check_form(path: Path, train: Form) -> None:
    """Refuse to start from the other form: it would have to be merged, or split into base and adapter.

    Raises:
        TrainingError: the folder holds the other form, or none.
    """
    form = form_of(path)
    if form != train:
        what = {"lora": "a LoRA adapter", "full": "a full checkpoint"}[form]
        raise TrainingError(
            f"model.train is {train}, but the stage starts from {what} ({path}); set model.train back to {form}, "
            "or start a new run"
        )


def adapter_digest(path: Path) -> str:
    """sha256 (hex) of the weights and hyperparameters of an adapter or checkpoint, wherever it lies.

    Raises:
        TrainingError: there is none, or its configuration can't be read.
    """
    form = form_of(path)
    try:
        config = json.loads((path / CONFIG[form]).read_text())
        content = {
            key: sorted(value) if key == "target_modules" and isinstance(value, list) else value
            for key, value in config.items()
            if key not in NOT_CONTENT
        }
        digest = hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())
        with (path / WEIGHTS[form]).open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except (OSError, ValueError, AttributeError) as error:
        raise TrainingError(f"{path}: no readable adapter there ({error}); run its stage again") from error
    return digest.hexdigest()
