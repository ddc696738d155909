"""A real model and tokenizer, only tiny: two Llama layers with random weights over a byte vocabulary."""

from pathlib import Path

import pytest
import torch

from schemas.config import LoraSection, ModelSection
from tasks.chat.tokenizers import ChatTokenizer, load_chat_tokenizer
from tasks.training.trainable import Trainable, make_trainable


@pytest.fixture
def model_section(byte_checkpoint: Path) -> ModelSection:
    return ModelSection(
        name=str(byte_checkpoint),
        dtype="float32",
        context_length=256,
        device="cpu",
        lora=LoraSection(r=4, alpha=8),
    )


@pytest.fixture
def chat(byte_checkpoint: Path) -> ChatTokenizer:
    return load_chat_tokenizer(byte_checkpoint)


@pytest.fixture
def trainable(model_section: ModelSection) -> Trainable:
    """A model whose adapter is not zero."""
    made = make_trainable(model_section, None, seed=1)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(2)
        for name, parameter in made.parameters.items():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
    return made
