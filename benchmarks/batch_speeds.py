"""Tokens a second by batch size: the transformers backend, plain `generate`, transformers' own continuous batching."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated

import torch
import typer
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig, PreTrainedModel
from transformers.generation import ContinuousBatchingManager

from benchmarks.checks import OUT, print_figures, write_checks
from schemas.config import EngineSection, ModelSection
from tasks.engines import build_engine
from tasks.engines.base import Engine, Message, Request, Sampling
from tasks.engines.chat import ChatTokenizer, load_chat_tokenizer
from tasks.engines.models import resolve_model
from tasks.engines.prefill import pad_left

WAVES = 2  # batches' worth of requests
Way = Callable[[Sequence[Request]], Awaitable[int]]  # answers requests; gives the number of tokens written


def requests(count: int, first: int, words: int, tokens: int) -> list[Request]:
    """Prompts of like length that begin differently, and limits from a quarter of `tokens` to all of them."""
    return [
        Request(
            (
                Message(role="system", content=f"{n}"),
                Message(role="user", content=f"Tell me about {n}. " * words),
            ),
            Sampling(max_tokens=tokens * (1 + n % 4) // 4, seed=n),
        )
        for n in range(first, first + count)
    ]


def by_engine(engine: Engine) -> Way:
    """The program's backend, asked for everything at once."""

    async def write(asked: Sequence[Request]) -> int:
        answers = await asyncio.gather(*[engine.generate(one) for one in asked])
        return sum(answer.completion_tokens for answer in answers)

    return write


def useful(tokens: Sequence[int], request: Request, ends: set[int]) -> int:
    """Tokens before the end of turn, within the request's limit."""
    written = list(tokens[: request.sampling.max_tokens])
    return next((i for i, token in enumerate(written) if token in ends), len(written))


def by_generate(model: PreTrainedModel, chat: ChatTokenizer, batch: int) -> Way:
    """Batches one after the other, each as long as its longest limit."""

    async def write(asked: Sequence[Request]) -> int:
        tokens = 0
        for start in range(0, len(asked), batch):
            some = asked[start : start + batch]
            ids, mask = pad_left([chat.prompt_ids(one.messages) for one in some], chat.pad_id, "cpu")
            limit = max(one.sampling.max_tokens for one in some)
            config = GenerationConfig(
                max_new_tokens=limit,
                do_sample=True,
                top_k=0,
                eos_token_id=chat.end_ids,
                pad_token_id=chat.pad_id,
            )
            with torch.inference_mode():
                rows = model.generate(ids, attention_mask=mask, generation_config=config)
            written = rows[:, ids.shape[1] :].tolist()
            tokens += sum(useful(row, one, set(chat.end_ids)) for row, one in zip(written, some, strict=True))
        return tokens

    return write


def by_manager(manager: ContinuousBatchingManager, chat: ChatTokenizer) -> Way:
    """Transformers' continuous batching, running; asked for everything at once."""

    async def write(asked: Sequence[Request]) -> int:
        waiting = {
            manager.add_request(chat.prompt_ids(one.messages), max_new_tokens=one.sampling.max_tokens): one
            for one in asked
        }
        tokens = 0
        while waiting:
            answer = manager.get_result(timeout=120)
            if answer is None or answer.error is not None:
                raise RuntimeError(f"continuous batching of transformers failed: {answer and answer.error}")
            if answer.is_finished():
                one = waiting.pop(answer.request_id)
                tokens += useful(answer.generated_tokens, one, set(chat.end_ids))
        return tokens

    return write


async def rate(way: Way, asked: Sequence[Request]) -> float:
    """Tokens a second."""
    begun = time.perf_counter()
    return await way(asked) / (time.perf_counter() - begun)


async def measure(model: ModelSection, batch: int, repeats: int, words: int, tokens: int) -> dict[str, float]:
    """Medians of the ways, which alternate; never the same prompts twice."""
    path = str(resolve_model(model))
    chat = load_chat_tokenizer(path)
    library = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, model.dtype)).eval()
    paged = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, model.dtype)).eval()
    engine = build_engine(EngineSection(max_batch=batch), model, OUT)
    manager = paged.init_continuous_batching(
        generation_config=GenerationConfig(
            max_new_tokens=tokens,
            do_sample=True,
            top_k=0,
            eos_token_id=chat.end_ids[0],
            pad_token_id=chat.pad_id,
        ),
        continuous_batching_config=ContinuousBatchingConfig(
            num_blocks=4 * batch, max_batch_tokens=2048, max_requests_per_batch=batch
        ),
    )
    manager.start()
    ways = {
        "backend transformers": by_engine(engine),
        "generate": by_generate(library, chat, batch),
        "continuous batching of transformers": by_manager(manager, chat),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(repeats):
        for name, way in ways.items():
            rates[name].append(
                await rate(way, requests(WAVES * batch, number * WAVES * batch, words, tokens))
            )
    manager.stop(block=True)
    await engine.close()
    return {name: statistics.median(values) for name, values in rates.items()}


def speeds(
    batches: Annotated[str, typer.Option(help="batch sizes")] = "1,4,16,64",
    dtypes: Annotated[str, typer.Option(help="types of the weights")] = "bfloat16,float32",
    repeats: Annotated[int, typer.Option(help="of each way")] = 3,
    words: Annotated[int, typer.Option(help="a prompt's length, in sentences of some six tokens")] = 30,
    tokens: Annotated[int, typer.Option(help="longest completion")] = 48,
) -> None:
    """Tokens a second by batch size, dtype and way; figures without a bar."""
    OUT.mkdir(exist_ok=True)
    for dtype in dtypes.split(","):
        model = ModelSection(dtype=dtype, device="cpu")  # type: ignore[arg-type]
        figures = {
            f"batch {batch}": asyncio.run(measure(model, int(batch), repeats, words, tokens))
            for batch in batches.split(",")
        }
        print_figures(f"tokens a second, {dtype}", figures)
        write_checks("rollout", [], **{f"tokens a second, {dtype}": figures})
