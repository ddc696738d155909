"""Models with sliding windows: the KV cache does not fit them; `generate` serves them."""

import asyncio
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, MistralConfig, MistralForCausalLM

from schemas.config import EngineSection, ModelSection
from tasks.chat.messages import Message
from tasks.engines.local.engine import TransformersEngine
from tasks.engines.local.kv_cache import fits
from tasks.engines.protocol import Request, Sampling, ScoreRequest


@pytest.fixture
def sliding_model(tiny_model: Path, tmp_path: Path) -> Path:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True, initializer_range=0.2,
        sliding_window=24, bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    MistralForCausalLM(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.slow
@torch.inference_mode()
def test_a_model_with_a_sliding_window_writes_and_scores_as_it_does_alone(sliding_model: Path) -> None:
    engine = TransformersEngine(
        EngineSection(max_batch=3), ModelSection(name=str(sliding_model), dtype="float32", device="cpu")
    )
    model = AutoModelForCausalLM.from_pretrained(sliding_model, dtype=torch.float32).eval()
    assert not fits(model)
    asked = [
        Request(
            (Message(role="user", content="Name a number. " * (1 + number)),),
            Sampling(temperature=0, max_tokens=3 + 5 * (number % 3)),
        )
        for number in range(5)
    ]

    rules = (Message(role="user", content="Name a number. " * 9),)

    async def answers() -> list[tuple[int, ...]]:
        written = await asyncio.gather(*[engine.generate(one) for one in asked])
        scored = await asyncio.gather(*[engine.score(ScoreRequest(rules, (text,))) for text in "abc"])
        alone = [await engine.score(ScoreRequest(rules, (text,))) for text in "abc"]
        await engine.close()
        for one, other in zip(scored, alone, strict=True):
            assert one.segments[0] == pytest.approx(other.segments[0], abs=1e-4)
        return [answer.token_ids for answer in written]

    for request, tokens in zip(asked, asyncio.run(answers()), strict=True):
        prompt = torch.tensor([engine._tokenizer.prompt_ids(request.messages)])
        alone = model.generate(prompt, max_new_tokens=len(tokens), do_sample=False, pad_token_id=0)
        assert alone[0, prompt.shape[1] :].tolist() == list(tokens)
