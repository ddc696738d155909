"""The arguments that vLLM is started with; vLLM itself is not needed."""

from pathlib import Path
from typing import Any

import pytest

from schemas.config import EngineSection, LoraSection, ModelSection
from tasks.chat.tokenizers import load_chat_tokenizer
from tasks.engines.vllm.settings import engine_arguments, linear_modules, read_completion


def arguments(
    model: Path, *, lora: bool = True, modules: Any = "all-linear", r: int = 2, **options: Any
) -> Any:
    section = EngineSection(backend="vllm", max_batch=3, options=options)
    shape = ModelSection(name=str(model), lora=LoraSection(r=r, target_modules=modules), revision="abc")
    return engine_arguments(section, shape, model, model, lora=lora)


def test_adapters_lie_on_the_linear_layers_alone_and_not_on_the_output(tiny_checkpoint: Path) -> None:
    found = arguments(tiny_checkpoint)["lora_target_modules"]
    assert found == linear_modules(tiny_checkpoint)
    assert "q_proj" in found and "lm_head" not in found


@pytest.mark.parametrize(("modules", "given"), [(["q_proj"], ["q_proj"]), (r".*\.q_proj", None)])
def test_named_layers_are_passed_on_and_a_pattern_is_left_to_vllm(
    tiny_checkpoint: Path, modules: Any, given: Any
) -> None:
    assert arguments(tiny_checkpoint, modules=modules)["lora_target_modules"] == given


def test_the_rank_is_the_next_that_vllm_takes(tiny_checkpoint: Path) -> None:
    ranks = [arguments(tiny_checkpoint, r=r)["max_lora_rank"] for r in (1, 2, 8, 9, 400)]
    assert ranks == [1, 8, 8, 16, 512]


def test_without_adapters_no_room_is_kept_for_them_and_options_come_last(tiny_checkpoint: Path) -> None:
    found = arguments(tiny_checkpoint, lora=False, max_num_seqs=9)
    assert "enable_lora" not in found and found["max_num_seqs"] == 9


def test_a_checkpoint_trained_from_the_base_has_no_revision_of_its_own(tiny_checkpoint: Path) -> None:
    section, model = EngineSection(backend="vllm"), ModelSection(name=str(tiny_checkpoint), revision="abc")
    trained = engine_arguments(section, model, tiny_checkpoint, "trained", lora=False)
    assert (trained["model"], trained["revision"]) == ("trained", None)
    assert (trained["tokenizer"], trained["tokenizer_revision"]) == (str(tiny_checkpoint), "abc")


@pytest.mark.parametrize(
    ("finish_reason", "stop_reason", "written", "end"),
    [
        ("stop", None, (5, 6), 7),
        ("stop", 7, (5, 6), 7),
        ("stop", "word", (5, 6, 7), None),
        ("length", None, (5, 6, 7), None),
    ],
)
def test_the_token_that_ended_a_turn_is_apart(
    tiny_checkpoint: Path, finish_reason: str, stop_reason: Any, written: tuple[int, ...], end: int | None
) -> None:
    tokenizer, logprobs = load_chat_tokenizer(tiny_checkpoint), (-0.5, -0.25, -0.125)
    done = read_completion(tokenizer, [1], [5, 6, 7], logprobs, "", finish_reason, stop_reason)
    assert (done.token_ids, done.logprobs) == (written, logprobs[: len(written)])
    assert (done.end_token_id, done.end_logprob) == (end, None if end is None else -0.125)
