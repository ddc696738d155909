"""Logged conversations, made up by hand, and the scripted roles of a run that trains on them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from schemas.load import PROJECT_ROOT
from tasks.engines.protocol import Request, ScoreRequest, Scores
from tests.support.rules import number_game, role_of

# 60 real ones (MIT licence, from tau-bench), which lie beside the project where its tests are developed.
AIRLINE = PROJECT_ROOT.parent / "shared" / "data" / "tau_airline_logged.json"

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_order",
            "description": "Look an order up.",
            "parameters": {
                "type": "object",
                "properties": {"order": {"type": "string"}, "page": {"type": "integer"}},
                "required": ["order"],
            },
        },
    }
]


def call(number: str, name: str, **arguments: object) -> dict[str, Any]:
    """A tool call as a message carries it."""
    return {
        "id": number,
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments)},
    }


def conversation(number: int, reward: float = 1.0, **fields: object) -> dict[str, Any]:
    """A conversation of three agent steps: a call with a thought, two calls at once, a reply."""
    return {
        "task_id": f"t{number % 2}",
        "reward": reward,
        "trial": number,
        "messages": [
            {"role": "system", "content": "Policy: be brief."},
            {"role": "user", "content": f"Where is order #{number}?"},
            {
                "role": "assistant",
                "content": "I look it up.",
                "tool_calls": [call("c1", "get_order", order="#1")],
            },
            {"role": "tool", "tool_call_id": "c1", "name": "get_order", "content": '{"status": "späť"}'},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [call("c2", "get_order", order="#1", page=2), call("c3", "think")],
            },
            {"role": "tool", "tool_call_id": "c2", "content": ""},
            {"role": "tool", "tool_call_id": "c3", "content": "done"},
            {"role": "assistant", "content": 'It says "späť".\nAnything else?'},
            {"role": "user", "content": "No."},
        ],
        **fields,
    }


def write_json(path: Path, records: Sequence[Mapping[str, Any]]) -> Path:
    """A file of format openai-chat."""
    path.write_text(json.dumps(records), encoding="utf-8")
    return path


def helpful(request: Request) -> str:
    """A policy and a refiner that write calls; the other roles as in the number game."""
    role = role_of(request)
    if role in ("policy", "refine"):
        chance = request.sampling.seed % 3
        if chance == 0:
            return "Thought: look\nAction: I would rather not"
        arguments = json.dumps(
            {"content": f"Let me see {chance}."} if role == "policy" else {"content": "Here it is."}
        )
        return f'Thought: be kind\nAction: {{"name": "respond", "arguments": {arguments}}}'
    return number_game(request)


def _score(request: ScoreRequest) -> Scores:
    return Scores(tuple(tuple(-0.25 for _ in segment.encode()) for segment in request.segments))


helpful.score = _score  # type: ignore[attr-defined]
