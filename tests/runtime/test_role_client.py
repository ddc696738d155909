"""What the roles' client keeps of a completion."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from schemas.config import Config
from tasks.chat.messages import Message, RequestError
from tasks.engines.protocol import Capabilities, Completion, Request, ScoreRequest, Scores
from tasks.engines.request_journal import RequestJournal
from tasks.environments.base import Step
from tasks.prompting.truncation import Prompt
from tasks.runtime import role_client
from tasks.runtime.role_client import RoleClient

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
PROMPT = Prompt((Message(role="user", content="Look."),), template="policy", tools=(TOOL,))


class Says:
    """An engine that always says the same."""

    capabilities = Capabilities()

    def __init__(self, text: str) -> None:
        self.text, self.asked = text, 0

    async def generate(self, request: Request) -> Completion:
        self.asked += 1
        return Completion(self.text, "stop", 1, 1)

    async def score(self, request: ScoreRequest) -> Scores:
        raise NotImplementedError

    async def close(self) -> None:
        pass


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[RequestJournal]:
    opened = RequestJournal(tmp_path / "stage.journal")
    yield opened
    opened.close()


def client(config: Config, engine: Says, journal: RequestJournal, folder: Path) -> RoleClient:
    name = config.roles.policy.engine
    return RoleClient(config, "rollout", 0, {"policy": None}, folder, journal, {name: engine})


HOSTILE = (
    f'<tool_call>{{"name": "look", "arguments": {"[" * 1000}',
    "[TOOL_CALLS]look[ARGS]" + "9" * 4301,
    '<tool_call>{"name": "look", "arguments": {"far": "\\ud83d"}}</tool_call>',
    "a \ud83d b",
    "<|python_tag|>look(far=b'3', near={1})",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_completion_is_an_answer_that_can_be_stored(
    text: str, make_config: Callable[..., Config], journal: RequestJournal, tmp_path: Path
) -> None:
    roles = client(make_config(), Says(text), journal, tmp_path)
    answer = asyncio.run(roles.ask("policy", PROMPT, adapter="policy", request_key="0"))
    assert answer.status == "ok" and answer.completion is not None
    assert (answer.text + answer.completion.text).encode()


def test_the_journal_keeps_no_completion_that_the_parser_refuses(
    make_config: Callable[..., Config],
    journal: RequestJournal,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Says("hello")
    roles = client(make_config(), engine, journal, tmp_path)

    def refuse(text: str) -> str:
        raise RuntimeError(text)

    with monkeypatch.context() as patched, pytest.raises(RuntimeError):
        patched.setattr(role_client, "action_text", refuse)
        asyncio.run(roles.ask("policy", PROMPT, adapter="policy", request_key="0"))
    for _ in range(2):
        again = RequestJournal(tmp_path / "stage.journal")
        roles = client(make_config(), engine, again, tmp_path)
        answer = asyncio.run(roles.ask("policy", PROMPT, adapter="policy", request_key="0"))
        assert answer.text == "Action: hello"
        again.close()
    assert engine.asked == 2, "once more after the refusal, then from the journal"


def test_an_observation_holds_no_lone_surrogate() -> None:
    assert Step("a \ud83d b").observation == "a \ufffd b"


def test_requests_are_counted_by_role_and_failed_ones_by_kind(
    make_config: Callable[..., Config], journal: RequestJournal, tmp_path: Path
) -> None:
    class Tired(Says):
        faults: ClassVar[Counter[str]] = Counter({"no answer, asked again": 2})

        async def generate(self, request: Request) -> Completion:
            if self.asked:
                raise RequestError("too many", kind="RateLimitError")
            return await super().generate(request)

    roles = client(make_config(), Tired("Action: [5]"), journal, tmp_path)

    async def asks() -> None:
        for key in ("first", "second"):
            await roles.ask("policy", PROMPT, adapter="policy", request_key=key)
        await roles.close()

    asyncio.run(asks())
    cost = roles.costs["policy"]
    assert (cost.texts, cost.failed, cost.prompt_tokens, cost.completion_tokens) == (2, 1, 1, 1)
    assert roles.faults() == {"RateLimitError": 1, "no answer, asked again": 2}, "of closed engines too"
