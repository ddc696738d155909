"""Rules in place of a model, for tests, worked examples and scripted opponents."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from schemas.config import EngineSection
from tasks.chat.messages import RequestError
from tasks.engines.protocol import Capabilities, Completion, Request, ScoreRequest, Scores
from tasks.imports import ImportRefused, load_named


class RulesError(Exception):
    """The rules can't be imported; the message names the field."""


def load_rules(path: str) -> Callable[..., Any]:
    """The callable at an import path 'module:callable'.

    Raises:
        RulesError: it may not or can't be imported, or can't be called.
    """
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise RulesError(f"rules: '{path}' is no import path; write it as 'module:callable'")
    try:
        rules = load_named(module, name)
    except ImportRefused as error:
        raise RulesError(f"rules: {error}") from error
    except ImportError as error:
        raise RulesError(
            f"rules: {module} can't be imported ({error}); is its folder on PYTHONPATH?"
        ) from error
    except AttributeError as error:
        raise RulesError(f"rules: module {module} has no '{name}'") from error
    if not callable(rules):
        raise RulesError(
            f"rules: {path} is not callable; it must take a Request and give a text or a Completion"
        )
    return rules  # type: ignore[no-any-return]


class ScriptedEngine:
    """Answers with a callable `rules(request) -> str | Completion`, which may be async and may raise. If it has an
    attribute `score(request) -> Scores`, the engine scores too.

    Args:
        section: `rules`, an import path.

    Raises:
        RulesError: the rules can't be imported.
    """

    def __init__(self, section: EngineSection) -> None:
        self._rules = load_rules(section.rules or "")
        self._score = getattr(self._rules, "score", None)
        self.capabilities = capabilities(self._rules)

    async def generate(self, request: Request) -> Completion:
        """As the protocol. The request fails if the rules raise, or write a text that does not match the regex."""
        answer = await self._ask(self._rules, request)
        if isinstance(answer, str):
            words = len(answer.split())
            read = sum(len(message["content"].split()) for message in request.messages)
            answer = Completion(answer, "stop", prompt_tokens=read, completion_tokens=words)
        if not isinstance(answer, Completion):
            raise RequestError(f"the rules gave {type(answer).__name__}, not a text or a Completion")
        if request.regex and not re.fullmatch(request.regex, answer.text):
            raise RequestError(
                f"the rules wrote {answer.text!r}, which does not match the regex {request.regex!r}"
            )
        return answer

    async def score(self, request: ScoreRequest) -> Scores:
        """As the protocol."""
        if self._score is None:
            raise RequestError("these rules do not score; give them an attribute score(request) -> Scores")
        scores: Scores = await self._ask(self._score, request)
        return scores

    async def _ask(self, rule: Callable[..., Any], request: Request | ScoreRequest) -> Any:
        try:
            answer = rule(request)
            return await answer if inspect.isawaitable(answer) else answer
        except RequestError:
            raise
        except Exception as error:
            # Rules are the user's code, so anything they raise fails this request only.
            raise RequestError(f"the rules raised {type(error).__name__}: {error}") from error

    async def close(self) -> None:
        """Nothing to free."""


def capabilities(rules: Callable[..., Any]) -> Capabilities:
    """What rules can do. Their tokens are words, so there are no ids."""
    return Capabilities(structured=True, scoring=hasattr(rules, "score"), adapters=True)
