"""A real model and tokenizer, only tiny: two Llama layers with random weights over a byte vocabulary."""

from pathlib import Path

import pytest
import torch

from schemas.config import LoraSection, ModelSection
from tasks.chat.tokenizers import ChatTokenizer, load_chat_tokenizer
from tasks.training.trainable import Trainable, make_trainable
from tests.support.tiny import make_tiny_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Over bytes: a text's tokens are its characters."""
    return make_tiny_checkpoint(tmp_path_factory.mktemp("bytes"))


@pytest.fixture
def model_section(checkpoint: Path) -> ModelSection:
    return ModelSection(
        name=str(checkpoint),
        dtype="float32",
        context_length=256,
        device="cpu",
        lora=LoraSection(r=4, alpha=8),
    )


@pytest.fixture
def chat(checkpoint: Path) -> ChatTokenizer:
    return load_chat_tokenizer(checkpoint)


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
