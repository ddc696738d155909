"""LoRA adapters: made from a seed, read from and written to ordinary peft folders.

folder/adapter_config.json         peft's own, with names in a fixed order
folder/adapter_model.safetensors   float32 A and B matrices under peft's own names
"""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import save_file
from transformers import PreTrainedModel

from schemas.config import ModelSection
from tasks.training import adapters
from tasks.training.records import TrainingError

CONFIG, WEIGHTS = adapters.CONFIG["lora"], adapters.WEIGHTS["lora"]


def fresh_adapter(base: PreTrainedModel, section: ModelSection, seed: int) -> PeftModel:
    """Put a new, trainable adapter on a model, in place. B is zero, so the model's output does not change.

    The seed determines A; the process's random state is not touched.
    """
    lora = section.lora
    config = LoraConfig(
        r=lora.r, lora_alpha=lora.alpha, target_modules=lora.target_modules, lora_dropout=0.0, bias="none",
        task_type="CAUSAL_LM",
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return get_peft_model(base, config)


def load_adapter(base: PreTrainedModel, path: Path, section: ModelSection | None = None) -> PeftModel:
    """Put an adapter of a peft folder on a model, trainable, in place.

    With `section`, its rank and scale must be the adapter's.

    Raises:
        TrainingError: there is no adapter, or it is not of this base model or these hyperparameters.
    """
    adapters.check_form(path, "lora")
    if section is not None:
        _same_shape(path, section)
    try:
        return PeftModel.from_pretrained(base, str(path), is_trainable=True)
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise TrainingError(
            f"{path}: this adapter can't be read, or does not fit model.name "
            f"{section.name if section else base.name_or_path}: {error}"
        ) from error


def _same_shape(path: Path, section: ModelSection) -> None:
    """Refuse an adapter whose rank or scale differs from the configuration, which it would silently override."""
    saved = json.loads((path / CONFIG).read_text())
    for field, key in (("r", "r"), ("alpha", "lora_alpha")):
        wanted = getattr(section.lora, field)
        if saved[key] != wanted:
            raise TrainingError(
                f"model.lora.{field} is {wanted}, but the adapter to start from ({path}) has {saved[key]}; "
                "set it back, or start a new run"
            )


def adapter_tensors(model: PeftModel) -> dict[str, torch.Tensor]:
    """The adapter's tensors under the names of an adapter file. They share memory with the parameters."""
    return dict(get_peft_model_state_dict(model, save_embedding_layers=False))


def save_adapter(model: PeftModel, tensors: Mapping[str, torch.Tensor], path: Path, base_name: str) -> None:
    """Write a peft folder. Equal tensors give equal bytes.

    peft's own `save_pretrained` is not used: it writes names in set order, which differs between processes, and a model
    card that holds the base model's path.

    Args:
        model: gives the configuration.
        tensors: live or target, under the names of `adapter_tensors`.
        path: the folder, made if missing.
        base_name: the base model that the adapter names.
    """
    path.mkdir(parents=True, exist_ok=True)
    config = model.peft_config["default"].to_dict()
    config = {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}
    config |= {"base_model_name_or_path": base_name, "inference_mode": True}
    (path / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    content = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(content, path / WEIGHTS, metadata={"format": "pt"})
