"""Rules for the scripted backend: a small chat model made of a table and the request's own random stream."""

import random

from tasks.engines.protocol import Request, ScoreRequest, Scores


def chatter(request: Request) -> str:
    asked = request.messages[-1]["content"]
    if asked == "fail":
        raise ValueError("asked to")
    if request.regex:
        return "[7]"
    version = request.adapter.version if request.adapter else "base"
    text = f"{version} {random.Random(request.sampling.seed).random()} END of it"
    for stop in request.sampling.stop:
        text = text.partition(stop)[0]
    return text


async def slow(request: Request) -> str:
    return f"slowly {request.sampling.seed}"


def counts(request: Request) -> int:
    return len(request.messages)


def wrong_format(request: Request) -> str:
    return "whatever"


def score(request: ScoreRequest) -> Scores:
    return Scores(tuple(tuple(-1.0 for _ in segment.split()) for segment in request.segments))


chatter.score = score  # type: ignore[attr-defined]
