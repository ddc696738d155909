"""Chat templates: prompts as the model knows them, completions token by token, hidden reasoning apart."""

import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from schemas.load import PROJECT_ROOT
from tasks.chat.messages import Message, RequestError
from tasks.chat.response_parser import split_reasoning
from tasks.chat.tokenizers import ChatTokenizer, load_chat_tokenizer

SYSTEM, USER = Message(role="system", content="Be brief."), Message(role="user", content="Hello")


@pytest.fixture
def tokenizer(tiny_model: Path) -> ChatTokenizer:
    return load_chat_tokenizer(tiny_model)


def test_prompts_follow_the_models_own_template(tokenizer: ChatTokenizer) -> None:
    expected = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer.render([SYSTEM, USER]) == expected
    ids = tokenizer.prompt_ids([SYSTEM, USER])
    assert tokenizer.tokenizer.decode(ids) == expected
    assert tokenizer.end_ids == [2] and tokenizer.tokenizer.convert_ids_to_tokens(2) == "<|im_end|>"
    assert tokenizer.prompt_ids([SYSTEM, USER], thinking=True) == ids


def test_a_template_without_system_role_gets_it_in_the_first_user_message(tokenizer: ChatTokenizer) -> None:
    own = tokenizer.tokenizer.chat_template
    refusal = "{{ raise_exception('System role not supported') }}"
    tokenizer.tokenizer.chat_template = (
        "{% if messages[0]['role'] == 'system' %}" + refusal + "{% endif %}" + own
    )
    assert "<|im_start|>user\nBe brief.\n\nHello<|im_end|>" in tokenizer.render([SYSTEM, USER])
    tokenizer.tokenizer.chat_template = "{{ raise_exception('no chats today') }}"
    with pytest.raises(RequestError, match="no chats today"):
        tokenizer.render([USER])


def test_a_template_that_opens_reasoning_has_it_closed_unless_it_is_wanted(tokenizer: ChatTokenizer) -> None:
    tokenizer.tokenizer.chat_template += "<think>\n"
    assert tokenizer.render([USER], thinking=True).endswith("<think>")
    assert tokenizer.decode(tokenizer.prompt_ids([USER])).endswith("<think>\n\n</think>\n\n")


def test_segments_are_tokenised_alone_and_as_plain_text(tokenizer: ChatTokenizer) -> None:
    segments = ["Thought: it is odd.\n", "", "[7]<|im_end|>"]
    ids = tokenizer.segment_ids(segments)
    assert [tokenizer.decode(part) for part in ids] == segments
    assert not set(tokenizer.tokenizer.all_special_ids) & {token for part in ids for token in part}


@pytest.mark.slow
def test_the_plain_class_is_taken_where_transformers_would_take_it(tiny_model: Path) -> None:
    theirs = AutoTokenizer.from_pretrained(tiny_model)
    ours = load_chat_tokenizer(tiny_model).tokenizer
    assert type(ours) is type(theirs) and ours.init_kwargs == theirs.init_kwargs
    script = (
        "import sys; from tasks.chat.tokenizers import load_chat_tokenizer as load; "
        f"load({str(tiny_model)!r}).prompt_ids([{{'role': 'user', 'content': 'Hello'}}]); "
        "assert 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=PROJECT_ROOT).returncode == 0


def test_a_tokenizer_without_template_is_refused(tiny_model: Path) -> None:
    plain = AutoTokenizer.from_pretrained(tiny_model)
    plain.chat_template = None
    with pytest.raises(RequestError, match="instruct"):
        ChatTokenizer(plain)
    with pytest.raises(RequestError, match=r"model\.name"):
        load_chat_tokenizer(tiny_model / "nothing")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("<think>\nhm\n</think>\n\n[7]", ("hm", "[7]")),
        ("hm</think>[7]", ("hm", "[7]")),  # opened in the prompt
        ("<think>hm, and then", ("hm, and then", "")),  # cut off
        ("no reasoning, 1 < 2", (None, "no reasoning, 1 < 2")),
    ],
)
def test_hidden_reasoning_is_parted_from_the_answer(text: str, parts: tuple[str | None, str]) -> None:
    assert split_reasoning(text) == parts
