"""Scripted roles and users of a customer service, for tests. They read nothing but the prompt."""

import json
import re

from tasks.chat.messages import RequestError
from tasks.engines.protocol import Request, ScoreRequest, Scores
from tests.support.rules import role_of


def _call(name: str, **arguments: object) -> str:
    return json.dumps({"name": name, "arguments": arguments})


def service(request: Request) -> str:
    """An agent that looks its user up, then asks until the conversation ends; some begin with a word that is no
    action. Half of the refinements lack an argument; every third backup leaks."""
    chance = request.sampling.seed
    leaky = chance % 3 == 0
    return {
        "policy": _policy(request),
        "refine": "Thought: a number is needed\nAction: "
        + (_call("get_order_details", order_id="#W1") if chance % 2 else _call("get_order_details")),
        "predict": "Thought: it begins\nFuture: some more questions, then the end",
        "bootstrap": f"Thought: {'The next observation shows it' if leaky else 'if so, it ends'}\nFuture: the end",
        "evaluate": f"Optimal: {'yes' if chance % 4 == 0 else 'no'}\nReason: ask for the order first",
        "correct": "if an order is named, it is looked up",
        "choose": "1",
    }[role_of(request)]


def _policy(request: Request) -> str:
    turn = sum(message["role"] == "assistant" for message in request.messages)
    if turn == 0 and request.sampling.seed % 3 == 0:
        return "Thought: hello\nAction: well, now"
    if turn == 0:
        return f"Thought: who is it?\nAction: {_call('find_user_id_by_email', email='nobody@nowhere')}"
    if turn == 3:
        return f"Thought: no more\nAction: {_call('transfer_to_human_agents', summary='tired')}"
    return f"Thought: ask\nAction: {_call('respond', content='What can I do?')}"


def _score(request: ScoreRequest) -> Scores:
    return Scores(tuple(tuple(-0.25 for _ in segment.encode()) for segment in request.segments))


service.score = _score  # type: ignore[attr-defined]


def customer(request: Request) -> str:
    """A simulated user who says a sentence, then agrees once, then ends it; who is called Daiki fails to answer."""
    system = request.messages[0]["content"]
    answers = sum(message["role"] == "assistant" for message in request.messages)
    if re.search(r"\bdaiki", system, re.IGNORECASE) and answers:
        raise RequestError("the line is dead")
    return ("Good day.", "Yes.", "###STOP###")[min(answers, 2)]
