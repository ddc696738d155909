"""Continuous batching: every row generates what it would generate alone, while others join and leave."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from schemas.config import EngineSection, ModelSection
from tasks.chat.messages import Message
from tasks.engines.local import prefix_cache as prefix_cache_module
from tasks.engines.local import sampler
from tasks.engines.local.engine import TransformersEngine
from tasks.engines.local.generate_batches import GenerateBatch
from tasks.engines.local.kv_cache import KVCache
from tasks.engines.local.prefix_cache import BLOCK, PrefixCache, Text, shared
from tasks.engines.protocol import Adapter, Completion, Request, Sampling, ScoreRequest

RULES = "You guess a number between one and twenty, and are told whether it is higher or lower."


@pytest.fixture
def model(tiny_model: Path) -> Iterator[PreTrainedModel]:
    with torch.inference_mode():
        yield AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()


@pytest.fixture
def engine(tiny_model: Path) -> TransformersEngine:
    section = EngineSection(max_batch=3)
    return TransformersEngine(section, ModelSection(name=str(tiny_model), dtype="float32", device="cpu"))


def greedy(*turns: str, tokens: int = 8, adapter: Adapter | None = None) -> Request:
    chat = [Message(role="system", content=RULES)]
    chat += [Message(role=("user", "assistant")[i % 2], content=turn) for i, turn in enumerate(turns)]
    return Request(tuple(chat), Sampling(temperature=0, max_tokens=tokens), adapter)


def alone(model: PreTrainedModel, engine: TransformersEngine, request: Request) -> list[int]:
    """What the library writes without a batch, a cache of ours, or anything before."""
    prompt = engine._tokenizer.prompt_ids(request.messages)
    limit = request.sampling.max_tokens
    written = model.generate(torch.tensor([prompt]), max_new_tokens=limit, do_sample=False, pad_token_id=0)
    tokens = written[0, len(prompt) :].tolist()
    ends = [i for i, token in enumerate(tokens) if token in engine._stop_ids]
    return tokens[: ends[0]] if ends else tokens


@pytest.mark.slow
def test_rows_that_memory_does_not_hold_together_write_the_same_one_by_one(
    engine: TransformersEngine, model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, rows_at_once = KVCache.decode, []

    def held(
        cache: KVCache, model: PreTrainedModel, starts: Sequence[int], last: torch.Tensor
    ) -> torch.Tensor:
        rows_at_once.append(len(starts))
        if len(starts) > 1 and len(rows_at_once) > 3:
            torch.empty(1 << 50, dtype=torch.uint8)  # the allocator itself says that there is no room
        return decode(cache, model, starts, last)

    monkeypatch.setattr(KVCache, "decode", held)
    requests = [greedy(f"Guess number {number}. " + "Think. " * number) for number in range(3)]

    async def ask() -> list[Completion]:
        return await asyncio.gather(*map(engine.generate, requests))

    for request, completion in zip(requests, asyncio.run(ask()), strict=True):
        assert list(completion.token_ids) == alone(model, engine, request)
    assert 3 in rows_at_once[:4] and set(rows_at_once[6:]) == {1}
    asyncio.run(engine.close())


@pytest.mark.slow
def test_rows_that_come_and_go_write_what_they_would_write_alone(
    engine: TransformersEngine, model: PreTrainedModel
) -> None:
    async def play(number: int) -> list[tuple[Request, Completion]]:
        """An episode: each prompt goes on where the last one ended."""
        turns, said = [f"Guess number {number}. " + "Think. " * number], []
        for turn in range(4):
            request = greedy(*turns, tokens=2 + (5 * number + 3 * turn) % 11)
            said.append((request, await engine.generate(request)))
            turns += [said[-1][1].text, f"higher than {turn}"]
        return said

    async def episodes() -> list[tuple[Request, Completion]]:
        played = await asyncio.gather(*map(play, range(7)))
        await engine.close()
        return [pair for episode in played for pair in episode]

    for request, completion in asyncio.run(episodes()):
        assert list(completion.token_ids) == alone(model, engine, request)


@pytest.mark.parametrize("continuous", [True, False])
def test_a_cancelled_request_frees_its_slot_in_the_middle_of_its_text(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, continuous: bool
) -> None:
    written = 0
    draw = sampler.draw
    under_way = threading.Event()

    def counting(rows: Sequence[sampler.Row], logits: torch.Tensor) -> tuple[list[int], list[float]]:
        nonlocal written
        written += 1
        if written == 5:
            under_way.set()
        return draw(rows, logits)

    async def checks() -> None:
        engine._stop_ids = frozenset()
        endless = [asyncio.create_task(engine.generate(greedy(turn, tokens=1500))) for turn in "abc"]
        assert await asyncio.to_thread(under_way.wait, 60)
        for task in endless:
            task.cancel()
        assert len((await engine.generate(greedy("other"))).token_ids) == 8
        assert all(task.cancelled() for task in endless)
        await engine.close()

    monkeypatch.setattr(sampler, "draw", counting)
    engine = TransformersEngine(
        EngineSection(max_batch=3, continuous=continuous), ModelSection(name=str(tiny_model), dtype="float32")
    )
    asyncio.run(checks())
    assert written < 500


def test_a_waiting_request_takes_a_freed_slot_at_once(engine: TransformersEngine) -> None:
    order: list[str] = []

    async def ask(name: str, tokens: int) -> None:
        await engine.generate(greedy(name, tokens=tokens))
        order.append(name)

    async def all_of_them() -> None:
        # Three places: one long row, and eight short ones that pass by it.
        names = [f"short {number}" for number in range(8)]
        await asyncio.gather(ask("long", 150), *[ask(name, 4) for name in names])
        await engine.close()

    asyncio.run(all_of_them())
    assert order[-1] == "long"


def test_only_the_new_part_of_a_prompt_is_prefilled(engine: TransformersEngine) -> None:
    assert engine._pool is not None
    read: list[int] = []
    engine._pool._base.register_forward_pre_hook(
        lambda _, __, kwargs: read.append(kwargs["input_ids"].numel()), with_kwargs=True
    )

    async def two_turns() -> tuple[int, int]:
        first = greedy("Guess. " * 40, tokens=2)
        answer, *_ = await asyncio.gather(*[engine.generate(first)] * 3)  # samples of one prompt
        assert sum(read) < 1.1 * answer.prompt_tokens
        before = sum(read)
        await asyncio.gather(*[engine.generate(first)] * 2)  # the same again: all is known
        again = sum(read) - before
        before = sum(read)
        await engine.generate(greedy("Guess. " * 40, answer.text, "lower", tokens=2))
        new = sum(read) - before
        await engine.close()
        return again, new

    again, new = asyncio.run(two_turns())
    assert again <= 4  # each time the last token of the prompt, and perhaps the first one written
    assert new < 30 < 80 < read[0]


def test_samples_of_a_prompt_are_computed_once_until_they_differ(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are what each would be alone, and a text that several have written so far takes one row of a step."""
    section = EngineSection(max_batch=6)
    engine = TransformersEngine(section, ModelSection(name=str(tiny_model), dtype="float32", device="cpu"))
    decode, rows = KVCache.decode, list[int]()

    def counted(
        cache: KVCache, model: PreTrainedModel, starts: Sequence[int], last: torch.Tensor
    ) -> torch.Tensor:
        rows.append(len(starts))
        return decode(cache, model, starts, last)

    monkeypatch.setattr(KVCache, "decode", counted)

    def sampled(turn: str, seed: int, tokens: int) -> Request:
        return replace(greedy(turn), sampling=Sampling(temperature=0.2, max_tokens=tokens, seed=seed))

    asked = [sampled("Guess.", seed, 6 + seed % 3) for seed in range(5)]
    asked += [sampled("Think.", 0, 4)]

    async def checks() -> None:
        together = await asyncio.gather(*map(engine.generate, asked))
        begun = [
            {
                (str(one.messages), done.token_ids[:step])
                for one, done in zip(asked, together, strict=True)
                if step < len(done.token_ids) + (done.finish_reason == "stop")
            }
            for step in range(9)
        ]
        assert rows == [len(texts) for texts in begun if texts]
        assert sum(rows) < sum(len(done.token_ids) for done in together), "no two samples began alike"
        assert max(rows) > 2, "no two samples differ"
        alone = [await engine.generate(one) for one in asked]
        for one, other in zip(together, alone, strict=True):
            assert one.token_ids == other.token_ids and one.finish_reason == other.finish_reason
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        await engine.close()

    asyncio.run(checks())


def test_a_cancelled_sample_leaves_its_text_to_the_others(
    engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, drawn = sampler.draw, 0
    under_way, cancelled = threading.Event(), threading.Event()

    def waiting(rows: Sequence[sampler.Row], logits: torch.Tensor) -> tuple[list[int], list[float]]:
        nonlocal drawn
        drawn += len(rows)
        if drawn > 10:
            under_way.set()
            assert cancelled.wait(60)
        return draw(rows, logits)

    async def checks() -> None:
        engine._stop_ids = frozenset()
        same = greedy("Guess.", tokens=40)
        first, other = [asyncio.create_task(engine.generate(same)) for _ in range(2)]
        assert await asyncio.to_thread(under_way.wait, 60)
        first.cancel()
        await asyncio.wait([first])
        cancelled.set()
        written = await other
        assert first.cancelled() and drawn < 60, "both were written to their end"
        assert written.token_ids == (await engine.generate(same)).token_ids and len(written.token_ids) == 40
        await engine.close()

    monkeypatch.setattr(sampler, "draw", waiting)
    asyncio.run(checks())


def test_another_adapter_shares_nothing(
    engine: TransformersEngine, tiny_adapters: list[Adapter], tiny_model: Path
) -> None:
    async def checks() -> None:
        base, adapted = greedy("Guess."), greedy("Guess.", adapter=tiny_adapters[0])
        completions = await asyncio.gather(*[engine.generate(r) for r in (base, adapted, base, adapted)])
        together = [done.token_ids for done in completions]
        assert together[0] == together[2] and together[1] == together[3]
        assert together[0] != together[1]
        await engine.close()
        fresh = TransformersEngine(
            EngineSection(max_batch=3), ModelSection(name=str(tiny_model), dtype="float32", device="cpu")
        )
        assert (await fresh.generate(adapted)).token_ids == together[1]
        await fresh.close()

    asyncio.run(checks())


def test_what_a_batch_held_is_free_at_its_end_without_the_garbage_collector(
    engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[KVCache]] = []

    def noted(self: KVCache, model: PreTrainedModel, most: int) -> None:
        made.append(weakref.ref(self))
        init(self, model, most)

    async def checks() -> None:
        for turn in ("a", "b"):
            await engine.generate(greedy(turn))
        await engine.close()

    init = KVCache.__init__
    monkeypatch.setattr(KVCache, "__init__", noted)
    gc.disable()
    try:
        asyncio.run(checks())
        assert made and not any(cache() for cache in made)
    finally:
        gc.enable()


def test_the_output_layer_computes_the_requested_positions_in_one_product(engine: TransformersEngine) -> None:
    """No logits of prompts being read, and the rows that are written or scored in one piece: in several, torch would
    copy the weights for each."""
    seen: list[tuple[int, ...]] = []

    def note(head: torch.nn.Module, inputs: tuple[torch.Tensor]) -> None:
        assert inputs[0].is_contiguous()
        seen.append(tuple(inputs[0].shape[:2]))

    assert engine._pool is not None
    engine._pool._base.get_output_embeddings().register_forward_pre_hook(note)

    async def write() -> None:
        await asyncio.gather(*[engine.generate(greedy("Think. " * n, tokens=4)) for n in (1, 5, 9)])

    async def score() -> None:
        asked = [ScoreRequest(greedy("Think. " * n).messages, ("five", " or so")) for n in (1, 5, 9)]
        await asyncio.gather(*map(engine.score, asked))

    asyncio.run(write())
    assert [rows for rows, kept in seen if kept] == [3, 3, 3, 3]
    assert {kept for _, kept in seen} == {0, 1}
    seen.clear()
    asyncio.run(score())
    [(rows, kept)] = [(rows, kept) for rows, kept in seen if kept]
    assert rows == 3 and kept < 20


def test_finished_rows_are_dropped_when_memory_is_full(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, known = KVCache(model, 2), PrefixCache()
    texts = [Text("", list(range(start, start + 2 * BLOCK))) for start in (0, 100, 200)]
    for text in texts:
        cache.prefill(model, [0], [0], torch.tensor([list(text.tokens)]))
        entry = known.add(text, 0)
        known.finish(entry, text, cache)
        monkeypatch.setattr(prefix_cache_module, "KEPT_BYTES", 2 * entry.size)
    assert [shared(text, known) for text in texts] == [0, 2, 2]
    found, tokens = known.find(Text("", [*texts[1].tokens, 5]))
    assert found is not None and found.slot is None and tokens == 2 * BLOCK
    assert known.find(texts[1])[1] == 2 * BLOCK - 1  # the last token is always read
    assert known.find(Text("other", texts[1].tokens)) == (None, 0)
    known.drop(found)
    assert shared(texts[1], known) == 0


def test_further_samples_of_a_prompt_are_what_they_would_be_beside_prompts_of_their_own(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where most rows of a batch repeat a prompt, it is read once."""
    read: list[int] = []
    engine = TransformersEngine(
        EngineSection(max_batch=8, continuous=False),
        ModelSection(name=str(tiny_model), dtype="float32", device="cpu"),
    )
    turns = ("Guess.", "Guess a number. Think first.")

    def sampled(turn: str, seed: int) -> Request:
        return replace(greedy(turn), sampling=Sampling(max_tokens=6, seed=seed))

    repeated = [sampled(turn, seed) for turn in turns for seed in range(4)]

    async def ask(requests: Sequence[Request]) -> list[Completion]:
        return await asyncio.gather(*map(engine.generate, requests))

    async def checks() -> None:
        together = await ask(repeated)
        assert read == [len(turns)]
        alone = [(await ask([request]))[0] for request in repeated]
        assert read == [len(turns)], "a prompt that does not repeat is read by the library"
        assert [c.token_ids for c in together] == [c.token_ids for c in alone]
        assert len({c.token_ids for c in together}) > len(turns)
        await engine.close()

    begin = GenerateBatch._begin_repeated

    def counted(
        batch: GenerateBatch, rows: Sequence[sampler.Row], ids: torch.Tensor, *others: Any
    ) -> torch.Tensor:
        begun = begin(batch, rows, ids, *others)
        if begun.shape != ids.shape:
            read.append(len({tuple(row.prompt) for row in rows}))
        return begun

    monkeypatch.setattr(GenerateBatch, "_begin_repeated", counted)
    asyncio.run(checks())
