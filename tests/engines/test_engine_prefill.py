"""Prompts read into a cache: equal ones once, with the same result as one by one."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from tasks.engines.prefill import read_prompts


@torch.inference_mode()
def test_equal_prompts_are_read_once_and_give_every_row_its_own_cache(tiny_model: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()
    read: list[int] = []
    model.register_forward_pre_hook(
        lambda _, __, kwargs: read.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    long, short = list(range(5, 40)), list(range(5, 25))
    prompts = read_prompts(model, [long, short, long, long], 0, "cpu")
    once = sum(read)
    read.clear()
    read_prompts(model, [long, short], 0, "cpu")
    assert once == sum(read)
    assert prompts.ids.shape == (4, len(long))
    for layer in prompts.cache.layers:
        assert torch.equal(layer.keys[0], layer.keys[2]) and torch.equal(layer.values[0], layer.values[3])
    step = model(
        input_ids=prompts.ids[:, -1:],
        attention_mask=prompts.mask,
        position_ids=prompts.mask.sum(dim=1, keepdim=True) - 1,
        past_key_values=prompts.cache,
    ).logits[:, -1]
    for row, prompt in enumerate((long, short, long, long)):
        alone = model(input_ids=torch.tensor([prompt])).logits[0, -1]
        torch.testing.assert_close(step[row], alone, rtol=1e-4, atol=1e-4)
