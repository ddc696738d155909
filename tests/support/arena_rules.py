"""Scripted players of TextArena's games, and an opponent, for tests. They read nothing but the prompt."""

import random
import re

from tasks.chat.messages import RequestError
from tasks.engines.protocol import Request
from tests.support.arena_players import STEPS
from tests.support.rules import number_game, role_of

_PEGS = ("AB", "AC", "BA", "BC", "CA", "CB")


def _move(request: Request) -> str:
    """A move of the game that the prompt tells of, drawn with the request's seed."""
    prompt = "\n".join(message["content"] for message in request.messages)
    stream = random.Random(request.sampling.seed)
    if "Tower of Hanoi" in prompt:
        top = {peg: int((disks or "9")[-1]) for peg, disks in re.findall(r"([ABC]): \[(.*)\]", prompt)[-3:]}
        legal = [pegs for pegs in _PEGS if top[pegs[0]] < top[pegs[1]]]
        return "[{} {}]".format(*stream.choice(legal if stream.random() < 0.7 else _PEGS))
    if "Frozen Lake" in prompt:
        return f"[{stream.choice(tuple(STEPS))}]"
    free = re.findall(r"Available Moves: (.*)", prompt)[-1]
    return stream.choice(re.findall(r"\[\d\]", free))


def player(request: Request) -> str:
    """Every role: random moves; the other texts are those of the number game."""
    role = role_of(request)
    if role in ("policy", "refine"):
        return f"Thought: onwards\nAction: {_move(request)}"
    return number_game(request)


player.score = number_game.score  # type: ignore[attr-defined]


def opponent(request: Request) -> str:
    """Takes the first free cell, and says so in a sentence."""
    free = re.findall(r"Available Moves: (.*)", request.messages[-1]["content"])[-1]
    (first, *_) = re.findall(r"\[\d\]", free)
    return f"I take {first}."


def tired_opponent(request: Request) -> str:
    """The same, until its third move."""
    if sum(message["role"] == "assistant" for message in request.messages) == 2:
        raise RequestError("too tired")
    return opponent(request)


def blunderer(request: Request) -> str:
    """A policy whose moves no game takes."""
    return "Thought: anything\nAction: [anything]"
