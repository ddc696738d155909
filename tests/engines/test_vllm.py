"""vLLM's processes end with their owner, also when it is killed; and it serves full and merged weights in turn."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from schemas.config import EngineSection, ModelSection, ServeSection
from tasks.chat.messages import Message
from tasks.chat.tokenizers import ChatTokenizer, load_chat_tokenizer
from tasks.engines.backends import build_engine
from tasks.engines.protocol import Adapter, ScoreRequest
from tasks.engines.reaper import watch
from tasks.engines.vllm.servers import serving
from tests.support.models import random_adapter
from tests.support.processes import all_end, engine_cores
from tests.support.processor import computes_long

OWNER = """
import asyncio, sys
from pathlib import Path
from schemas.config import EngineSection, ModelSection
from tasks.engines.backends import build_engine

async def hold():
    build_engine(EngineSection(backend="vllm"), ModelSection(name=sys.argv[1], dtype="bfloat16"), Path(sys.argv[2]))
    print("up", flush=True)
    await asyncio.sleep(600)

if __name__ == "__main__":
    asyncio.run(hold())
"""


def test_watched_processes_end_when_the_watch_is_closed_and_others_stay() -> None:
    first, second = (psutil.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) for _ in range(2))
    open_watch, closed = watch([first]), watch([second])
    closed.communicate()
    assert all_end([second], 15)
    assert first.is_running()  # though its own watch began before
    open_watch.communicate()
    assert all_end([first], 15)


@pytest.mark.long
@pytest.mark.vllm
def test_a_killed_owner_leaves_no_process_behind(real_model: Path, tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    script = tmp_path / "owner.py"
    script.write_text(OWNER)
    environment = {name: os.environ[name] for name in ("OMP_NUM_THREADS", "VLLM_CACHE_ROOT")}
    owner = subprocess.Popen(
        [sys.executable, str(script), str(real_model), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**environment, "PYTHONPATH": ":".join(sys.path), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    assert owner.stdout is not None
    assert any(line.strip() == "up" for line in owner.stdout)
    below = psutil.Process(owner.pid).children(recursive=True)
    assert len(below) >= 2
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    assert all_end(below, 10)


def full_weights(folder: Path, tokenizer_of: Path) -> tuple[ModelSection, Adapter]:
    """A tiny model, and another version of all its weights, as training leaves it: without a tokenizer."""
    made: list[Path] = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=len(load_chat_tokenizer(tokenizer_of).tokenizer), hidden_size=128, intermediate_size=256,
            num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True,
            initializer_range=0.2,
        )  # fmt: skip
        made.append(folder / str(seed))
        LlamaForCausalLM(config).save_pretrained(made[-1])
    load_chat_tokenizer(tokenizer_of).tokenizer.save_pretrained(made[0])
    model = ModelSection(name=str(made[0]), dtype="float32", context_length=256, train="full")
    return model, Adapter("policy@00000", made[1], "d" * 64)


def by_hand(weights: Path, chat: ChatTokenizer, request: ScoreRequest) -> list[float]:
    """The scores of a request's only segment, computed by transformers."""
    prompt = chat.prompt_ids(request.messages)
    (segment,) = chat.segment_ids(request.segments)
    model = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32)
    with torch.no_grad():
        logprobs = model(torch.tensor([[*prompt, *segment]])).logits[0].log_softmax(-1)
    return [logprobs[len(prompt) - 1 + i, token].item() for i, token in enumerate(segment)]


@pytest.mark.long
@pytest.mark.vllm
@pytest.mark.parametrize(
    "way",
    [pytest.param("in process", marks=computes_long), "served", pytest.param("merged", marks=computes_long)],
)
def test_versions_of_whole_weights_play_in_turn_each_with_its_own_and_none_beside_another(
    real_model: Path, tmp_path: Path, way: str
) -> None:
    pytest.importorskip("vllm")
    """Versions of all weights; merged, an adapter's weights are as whole."""
    model, version = full_weights(tmp_path, real_model)
    serve = ServeSection() if way == "served" else None
    section = EngineSection(backend="openai" if serve else "vllm", max_batch=2, serve=serve)
    if way == "merged":
        version = random_adapter(Path(model.name), tmp_path / "adapter", seed=0, scale=0.3)
        model = model.model_copy(update={"train": "lora"})
        section = section.model_copy(update={"merge_adapters": True})
    asked = [
        ScoreRequest((Message(role="user", content="Name a number."),), ("Seven is one.",), adapter)
        for adapter in (version, None)
    ]

    async def play() -> list[list[float]]:
        engine = build_engine(section, model, tmp_path)
        try:
            first = await engine.score(asked[0])
            before = engine_cores()
            second = await engine.score(asked[1])
            if serve is None:
                assert len(before) == len(engine_cores()) == 1 and before != engine_cores()
            return [list(scores.segments[0]) for scores in (first, second)]
        finally:
            await engine.close()

    with serving([section], model, tmp_path):
        trained, own = asyncio.run(play())
    chat = load_chat_tokenizer(real_model)
    for scores, weights, request in ((trained, version.path, asked[0]), (own, Path(model.name), asked[1])):
        assert scores == pytest.approx(by_hand(weights, chat, request), abs=1e-3)
    assert trained != pytest.approx(own, abs=0.1)
