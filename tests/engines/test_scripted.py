"""Scripted rules: plain or asynchronous, held to the regex like any model."""

import asyncio
from pathlib import Path

import pytest

from schemas.config import EngineSection, ModelSection
from tasks.chat.messages import Message, RequestError
from tasks.engines.backends import build_engine
from tasks.engines.protocol import Engine, Request, Sampling, ScoreRequest

ASKED = (Message(role="user", content="hello there"),)


def engine_of(name: str, folder: Path) -> Engine:
    section = EngineSection(backend="scripted", rules=f"tests.support.chatter_rules:{name}")
    return build_engine(section, ModelSection(), folder)


def test_asynchronous_rules_are_awaited(tmp_path: Path) -> None:
    answer = asyncio.run(engine_of("slow", tmp_path).generate(Request(ASKED, Sampling(seed=4))))
    assert (answer.text, answer.prompt_tokens, answer.completion_tokens) == ("slowly 4", 2, 2)


def test_a_text_against_the_regex_is_an_error_and_not_an_answer(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="does not match"):
        asyncio.run(engine_of("wrong_format", tmp_path).generate(Request(ASKED, Sampling(), regex="[0-9]")))


def test_rules_without_a_score_say_so(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="attribute score"):
        asyncio.run(engine_of("slow", tmp_path).score(ScoreRequest(ASKED, ("a",))))


def test_an_answer_that_is_no_text_is_an_error_that_names_its_type(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="the rules gave int, not a text or a Completion"):
        asyncio.run(engine_of("counts", tmp_path).generate(Request(ASKED, Sampling())))
