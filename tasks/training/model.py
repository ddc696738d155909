"""The base model in training: loaded, frozen, checked."""

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from schemas.config import ModelSection
from tasks.engines.models import resolve_model
from tasks.training.records import TrainingError


def load_base(section: ModelSection) -> PreTrainedModel:
    """The model without an adapter, on its device, without dropout.

    Raises:
        tasks.engines.models.ModelError: the model can't be had.
        TrainingError: its logits are more than a linear map of its hidden states (capped or scaled, say),
            which the loss does not know.
    """
    cuda = section.device == "cuda" or (section.device == "auto" and torch.cuda.is_available())
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        str(resolve_model(section)),
        revision=section.revision,
        dtype=getattr(torch, section.dtype),
        attn_implementation="sdpa",
    )
    model.requires_grad_(False).to("cuda" if cuda else "cpu").eval()
    _check_head(model, section)
    return model


@torch.no_grad()
def _check_head(model: PreTrainedModel, section: ModelSection) -> None:
    """Ask the model itself, rather than list the configuration keys of every architecture."""
    probe = torch.tensor([[0, 1]], device=model.device)
    logits = model(input_ids=probe, use_cache=False).logits
    hidden = model.get_decoder()(input_ids=probe, use_cache=False).last_hidden_state
    linear = model.get_output_embeddings()(hidden).to(logits.dtype)
    if not torch.allclose(logits, linear, rtol=1e-2, atol=1e-2):
        raise TrainingError(
            f"model.name: {section.name} caps or scales its logits, which training does not support; take a "
            "model with a plain linear head (Llama, Qwen, Mistral ...)"
        )
