"""A tiny random model with the tokenizer and chat template of the real one, and LoRA adapters."""

from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from tasks.chat.tokenizers import load_chat_tokenizer
from tasks.engines.protocol import Adapter


def make_tiny_llama(folder: Path, tokenizer_of: Path) -> Path:
    """Two random layers behind the real tokenizer: fast, and every choice of token is a toss."""
    tokenizer = load_chat_tokenizer(tokenizer_of).tokenizer
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
