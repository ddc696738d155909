"""The model that training starts from: loaded, checked, frozen or not."""

from pathlib import Path

import torch
from accelerate import init_empty_weights
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from schemas.config import ModelSection
from tasks.engines.models import resolve_model
from tasks.training.adapters import NOT_CONTENT, check_form
from tasks.training.fused.fused_layers import replace_linears
from tasks.training.fused.fused_norms import fuse_norms
from tasks.training.fused.packing import use_packing
from tasks.training.processes import Processes
from tasks.training.records import TrainingError


def load_base(section: ModelSection, together: Processes | None = None) -> PreTrainedModel:
    """The frozen base model of an adapter, without dropout.

    Args:
        section: the model.
        together: the processes that it will be spread over (`sharding`). The first has the weights in host memory, the
            others the modules without them. None: this process has the model whole, on its device.

    Raises:
        tasks.engines.models.ModelError: the model can't be had.
        TrainingError: its logits are not a linear map of its hidden states (but capped or scaled, say), which the loss
            does not support.
    """
    dtype: torch.dtype = getattr(torch, section.dtype)
    return _load(section, resolve_model(section), dtype, together).requires_grad_(False)


def load_trainable(
    section: ModelSection, start: Path | None, together: Processes | None = None
) -> PreTrainedModel:
    """The model, or its checkpoint `start`, with all weights trainable; in float32 whatever `model.dtype` is (`ema`).

    Args:
        section: the model.
        start: a full checkpoint of it; None: the model itself.
        together: as load_base.

    Raises:
        tasks.engines.models.ModelError: the model can't be had.
        TrainingError: as load_base; or `start` is no full checkpoint, is broken, or is of another model.
    """
    if start is None:
        return _load(section, resolve_model(section), torch.float32, together).requires_grad_(True)
    check_form(start, "full")
    try:
        model = _load(section, start, torch.float32, together)
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise TrainingError(
            f"{start}: this checkpoint can't be read ({error}); run its stage again"
        ) from error
    named = AutoConfig.from_pretrained(str(resolve_model(section)), revision=section.revision)
    ours, theirs = _architecture(model.config), _architecture(named)
    if differing := sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)):
        raise TrainingError(
            f"{start}: this checkpoint is not of model.name {section.name} (they differ in "
            f"{', '.join(differing)}); set model.name back, or start a new run"
        )
    return model.requires_grad_(True)


def _architecture(config: PretrainedConfig) -> dict[str, object]:
    apart = NOT_CONTENT | {"dtype", "torch_dtype", "architectures", "use_cache"}
    return {key: value for key, value in config.to_dict().items() if key not in apart}


def _load(
    section: ModelSection, path: Path | str, dtype: torch.dtype, together: Processes | None
) -> PreTrainedModel:
    transformers_logging.disable_progress_bar()  # of reading and writing weights; stages have their own
    if together is not None and not together.first:
        config = AutoConfig.from_pretrained(str(path), revision=section.revision)
        with init_empty_weights(include_buffers=False):
            empty: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
        empty.eval()
        return empty
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        str(path), revision=section.revision, dtype=dtype
    )
    device = "cpu" if together else device_of(section)
    model.to(device).eval()  # type: ignore[arg-type]  # its decorator hides its signature
    # cuDNN plans its attention for milliseconds at each new shape, and packed rows have new ones in each batch.
    torch.backends.cuda.enable_cudnn_sdp(False)
    use_packing(model)
    if together is None:
        fuse_norms(model)
        replace_linears(model)
    _check_head(model, section)
    return model


def device_of(section: ModelSection) -> str:
    """Where the model trains: "cuda" or "cpu"."""
    cuda = section.device == "cuda" or (section.device == "auto" and torch.cuda.is_available())
    return "cuda" if cuda else "cpu"


@torch.no_grad()
def _check_head(model: PreTrainedModel, section: ModelSection) -> None:
    """Compare with the model's own logits, rather than list the configuration keys of every architecture."""
    probe = torch.tensor([[0, 1]], device=model.device)
    logits = model(input_ids=probe, use_cache=False).logits
    hidden = model.get_decoder()(input_ids=probe, use_cache=False).last_hidden_state
    linear = model.get_output_embeddings()(hidden).to(logits.dtype)
    if not torch.allclose(logits, linear, rtol=1e-2, atol=1e-2):
        raise TrainingError(
            f"model.name: {section.name} caps or scales its logits, which training does not support; take a "
            "model with a plain linear head (Llama, Qwen, Mistral ...)"
        )
