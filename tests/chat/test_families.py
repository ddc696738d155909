"""One way to chat with every family: what a template knows or lacks, hidden thought, and tools."""

import asyncio
from pathlib import Path

import pytest

from schemas.config import EngineSection, ModelSection
from tasks.chat.messages import Message, Tool
from tasks.chat.response_parser import Call, read_calls, split_reasoning
from tasks.chat.tokenizers import ChatTokenizer
from tasks.datasets.example import Example
from tasks.engines.local.engine import TransformersEngine
from tasks.engines.protocol import Completion, Request, Sampling, ScoreRequest, Scores
from tasks.training.data import encode
from tests.support.families import FAMILIES, Family, make_checkpoint, make_tokenizer

ANSWER = "Thought: left is free\nAction: [left]"
CHAT = (
    Message(role="system", content="You walk."),
    Message(role="user", content="A wall."),
    Message(role="assistant", content="<think>hidden doubts</think>\n\nThought: back\nAction: [back]"),
    Message(role="user", content="A door."),
)
LOOK: Tool = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks around.",
        "parameters": {"type": "object", "properties": {"far": {"type": "integer"}}},
    },
}
CALLED: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "000000001", "type": "function", "function": {"name": "look", "arguments": '{"far": 3}'}}
    ],
}
TOOL_CHAT = (
    *CHAT[:2],
    CALLED,
    Message(role="tool", content="a lamp", tool_call_id="000000001", name="look"),
)
EMPTY_THOUGHT = "<think>\n\n</think>\n\n"


@pytest.fixture(params=sorted(FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def chat(family: str) -> ChatTokenizer:
    return ChatTokenizer(make_tokenizer(FAMILIES[family]))


def test_the_label_is_the_answer_and_the_familys_end_of_turn(chat: ChatTokenizer, family: str) -> None:
    row = encode(Example("row", "policy", CHAT, (ANSWER,)), chat, 4000)
    end = chat.tokenizer.convert_tokens_to_ids(FAMILIES[family].end)
    assert chat.decode(row.label_ids) == ANSWER
    assert row.label_ids[-1] == end and end not in row.label_ids[:-1]
    assert len(row.targets) == len(row.label_ids)
    assert chat.tokenizer.decode(row.prompt_ids) == chat.render(CHAT)


def test_prompt_and_label_are_the_tokens_of_the_whole_conversation(chat: ChatTokenizer, family: str) -> None:
    row = encode(Example("row", "policy", CHAT, (ANSWER,)), chat, 4000)
    whole = chat.render([*CHAT, Message(role="assistant", content=ANSWER)], add_generation_prompt=False)
    trained = chat.tokenizer.decode([*row.prompt_ids, *row.label_ids])
    if family == "qwq":  # its template shows an answer without the block that its prompt opens
        trained = trained.replace(EMPTY_THOUGHT, "")
    assert whole.rstrip() == trained


def complete(chat: ChatTokenizer, checkpoint: Path, **wanted: object) -> Completion:
    engine = TransformersEngine(
        EngineSection(),
        ModelSection(name=str(checkpoint), dtype="float32", context_length=1000, device="cpu"),
    )
    request = Request(CHAT, Sampling(max_tokens=60, seed=1), **wanted)  # type: ignore[arg-type]

    async def once() -> Completion:
        try:
            return await engine.generate(request)
        finally:
            await engine.close()

    return asyncio.run(once())


def test_what_a_rollout_samples_is_token_for_token_what_training_reads(
    chat: ChatTokenizer, family: str, tmp_path: Path
) -> None:
    checkpoint = make_checkpoint(FAMILIES[family], tmp_path)
    sampled = complete(chat, checkpoint, regex=r"Thought: [a-z ]{1,20}\nAction: \[[a-z]{1,8}\]")
    assert sampled.finish_reason == "stop"
    row = encode(Example("row", "policy", CHAT, (sampled.text,)), chat, 4000)
    assert len(row.prompt_ids) == sampled.prompt_tokens
    assert list(row.prompt_ids) == chat.prompt_ids(CHAT)
    assert row.label_ids == (*sampled.token_ids, *chat.end_ids)


def test_a_completion_that_begins_inside_the_thought_is_marked_from_its_beginning(tmp_path: Path) -> None:
    chat = ChatTokenizer(make_tokenizer(FAMILIES["qwq"]))
    sampled = complete(chat, make_checkpoint(FAMILIES["qwq"], tmp_path), thinking=True)
    assert sampled.text.startswith("<think>")
    assert sampled.token_ids[0] != chat.tokenizer.convert_tokens_to_ids("<think>")
    reasoning, answer = split_reasoning(sampled.text)
    assert reasoning and answer == ""


def test_hidden_thought_is_in_no_later_prompt(chat: ChatTokenizer) -> None:
    for thinking in (False, True):
        text = chat.render(CHAT, thinking=thinking)
        assert "hidden doubts" not in text and "Action: [back]" in text
    assert "You walk." in text and "A door." in text


@pytest.mark.parametrize(
    ("name", "thinking", "ending"),
    [
        ("qwen3", True, "<|im_start|>assistant\n"),
        ("qwen3", False, f"<|im_start|>assistant\n{EMPTY_THOUGHT}"),
        ("qwq", True, "<|im_start|>assistant\n<think>\n"),
        ("qwq", False, f"<|im_start|>assistant\n{EMPTY_THOUGHT}"),
        ("gemma", True, "<start_of_turn>model\n"),
    ],
)
def test_a_turn_begins_with_thought_or_with_the_answer(name: str, thinking: bool, ending: str) -> None:
    chat = ChatTokenizer(make_tokenizer(FAMILIES[name]))
    assert chat.tokenizer.decode(chat.prompt_ids(CHAT, thinking=thinking)).endswith(ending)


def test_training_stands_where_an_empty_thought_would_have_been_sampled() -> None:
    """Qwen3 thinks in its completion, QwQ from its prompt on: with nothing thought both are what is trained on."""
    for name, thought in (("qwen3", EMPTY_THOUGHT), ("qwq", "\n</think>\n\n")):
        chat = ChatTokenizer(make_tokenizer(FAMILIES[name]))
        row = encode(Example("row", "policy", CHAT, (ANSWER,)), chat, 4000)
        prompt = chat.prompt_ids(CHAT, thinking=True)
        completion = chat.tokenizer.encode(f"{thought}{ANSWER}", add_special_tokens=False)
        assert [*prompt, *completion, *chat.end_ids] == [*row.prompt_ids, *row.label_ids]


REASONS = "A wall to the right.\nSo left?"
THINKERS = {"qwen3": f"<think>\n{REASONS}\n</think>\n\n{ANSWER}", "qwq": f"{REASONS}\n</think>\n\n{ANSWER}"}


@pytest.mark.parametrize(("name", "sampled"), THINKERS.items())
def test_a_label_with_its_hidden_thought_is_what_a_thinking_turn_samples(name: str, sampled: str) -> None:
    chat = ChatTokenizer(make_tokenizer(FAMILIES[name]))
    row = encode(Example("row", "critic", CHAT, (ANSWER[:9], ANSWER[9:]), 1, reasoning=REASONS), chat, 4000)
    assert list(row.prompt_ids) == chat.prompt_ids(CHAT, thinking=True)
    assert chat.decode(row.label_ids) == sampled
    assert row.label_ids[: -len(chat.end_ids)] == (*chat.segment_ids([sampled])[0],)
    text = chat.completion_text(row.prompt_ids, row.label_ids)
    assert split_reasoning(text) == (REASONS, ANSWER)
    begin, end = row.segment_spans[1]
    assert chat.decode(row.label_ids[begin:end]) == ANSWER[9:]


@pytest.mark.parametrize("name", THINKERS)
def test_an_answer_is_scored_behind_its_hidden_thought(name: str, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    chat = ChatTokenizer(make_tokenizer(FAMILIES[name]))
    checkpoint = make_checkpoint(FAMILIES[name], tmp_path)
    model = ModelSection(name=str(checkpoint), dtype="float32", context_length=1000, device="cpu")
    engine = TransformersEngine(EngineSection(), model)

    async def score() -> list[Scores]:
        try:
            return [
                await engine.score(ScoreRequest(CHAT, (ANSWER,), reasoning=given))
                for given in (REASONS, None)
            ]
        finally:
            await engine.close()

    behind, alone = asyncio.run(score())
    row = encode(Example("row", "critic", CHAT, (ANSWER,), reasoning=REASONS), chat, 4000)
    ids = torch.tensor([[*row.prompt_ids, *row.label_ids]])
    with torch.no_grad():
        logprobs = AutoModelForCausalLM.from_pretrained(checkpoint)(ids).logits[0].log_softmax(-1)
    begin, end = (len(row.prompt_ids) + at for at in row.segment_spans[0])
    expected = [float(logprobs[at - 1, ids[0, at]]) for at in range(begin, end)]
    assert behind.segments[0] == pytest.approx(expected, abs=1e-4)
    assert behind.segments[0] != pytest.approx(alone.segments[0], abs=1e-4)


def test_a_family_that_marks_its_thought_otherwise_is_trained_on_its_own_marks() -> None:
    tokenizer = make_tokenizer(FAMILIES["mistral"])
    assert ChatTokenizer(tokenizer).reasoning_text("so") == "<think>\nso\n</think>\n\n"
    tokenizer.chat_template += "{# [THINK] opens what it thinks #}"
    assert ChatTokenizer(tokenizer).reasoning_text("so") == "[THINK]so[/THINK]"


def test_a_family_without_system_role_gets_it_in_the_first_question() -> None:
    text = ChatTokenizer(make_tokenizer(FAMILIES["gemma"])).render(CHAT)
    assert text.startswith("<bos><start_of_turn>user\nYou walk.\n\nA wall.<end_of_turn>\n")


def test_a_prompt_does_not_tell_the_day_it_was_rendered_on() -> None:
    tokenizer = make_tokenizer(FAMILIES["llama3"])
    assert "Today: 26 Jul 2024" in ChatTokenizer(tokenizer).render(CHAT)
    tokenizer.chat_template = "{{ strftime_now('%Y-%m-%d') }}{{ messages[-1].content }}"
    assert ChatTokenizer(tokenizer).render(CHAT) == "2024-07-26A door."


def test_every_family_is_shown_tools_calls_and_results(chat: ChatTokenizer) -> None:
    text = chat.render(TOOL_CHAT, tools=(LOOK,))
    assert all(word in text for word in ("You walk.", "Looks around.", '{"far": 3}', "a lamp"))


def test_a_call_is_written_tokenised_and_read_again(chat: ChatTokenizer, family: str) -> None:
    written = chat.answer_text({**CALLED, "content": "Is it dark?"}, (LOOK,))
    (ids,) = chat.segment_ids([written])
    words, calls = read_calls(chat.decode(ids))
    assert calls == (Call("look", {"far": 3}),)
    assert words == ("" if family == "llama3" else "Is it dark?")  # its template has no room for both
    if family == "mistral":  # the mark is one special token, as the model samples it
        assert chat.tokenizer.convert_tokens_to_ids("[TOOL_CALLS]") in ids


def test_tools_are_spelled_out_for_a_template_that_has_no_place_for_them() -> None:
    chat = ChatTokenizer(make_tokenizer(FAMILIES["chatml"]))
    text = chat.render(TOOL_CHAT, tools=(LOOK,))
    assert '<tool_call>\n{"name": "look", "arguments": {"far": 3}}\n</tool_call><|im_end|>' in text
    assert "<|im_start|>user\n<tool_response>\na lamp\n</tool_response><|im_end|>" in text


# Templates as published, which ship with TRL; each with what ends a turn.
PUBLISHED = {
    "gemma": "<end_of_turn>", "gemma3": "<end_of_turn>", "llama3": "<|eot_id|>", "llama3_1": "<|eot_id|>",
    "llama3_2": "<|eot_id|>", "phi3": "<|end|>", "qwen2_5": "<|im_end|>", "qwen3": "<|im_end|>",
    "qwen3_5_think": "<|im_end|>", "qwen3_instruct_2507": "<|im_end|>", "lfm2": "<|im_end|>",
}  # fmt: skip
NATIVE = {"llama3_1", "llama3_2", "qwen2_5", "qwen3", "qwen3_instruct_2507"}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_templates_are_trained_on_as_they_print(name: str) -> None:
    trl = pytest.importorskip(
        "trl", reason="TRL, whose templates these are, is not installed: pip install trl"
    )
    template = (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")
    chat = ChatTokenizer(make_tokenizer(Family(template, PUBLISHED[name], bos="<bos>")))
    row = encode(Example("row", "policy", CHAT, (ANSWER,)), chat, 4000)
    whole = chat.render([*CHAT, Message(role="assistant", content=ANSWER)], add_generation_prompt=False)
    trained = chat.tokenizer.decode([*row.prompt_ids, *row.label_ids])
    assert whole.startswith(trained) and whole[len(trained) :].strip() in ("", "<|end|>")
    shown = chat.render(TOOL_CHAT, tools=(LOOK,))
    assert all(word in shown for word in ("You walk.", "Looks around.", "a lamp")) and "hidden" not in trained
    written = chat.answer_text(CALLED, (LOOK,))
    assert read_calls(written) == ("", (Call("look", {"far": 3}),))
    assert chat.fit([CALLED], (LOOK,))[1] == ((LOOK,) if name in NATIVE else ())
