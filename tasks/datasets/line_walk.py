"""Demonstrations of all five roles for the line walk, told from random play.

Moves are drawn uniformly from the legal ones, so no demonstration is good play. What the texts say is true: a future is
one that was played, a label is the backup of one, and a critique states the mean value of played futures. Half of the
critiques judge an optimal move. Of random moves a ninth are optimal, and from those an evaluator learns to say no.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any

import polars as pl

from prompts import render
from storage.history import State
from tasks.chat.messages import Message
from tasks.datasets.demonstrations import NEEDS, demonstrations_frame
from tasks.engines.protocol import Request, Sampling
from tasks.environments.base import Step, Task
from tasks.environments.line_walk import LineWalk
from tasks.environments.line_walk.roles import rules
from tasks.environments.line_walk.text import Foreseen, after, read_observation
from tasks.prompting.role_prompts import Attempt
from tasks.seeding import derive_seed
from tasks.text.formats import read_action, read_future, read_verdict, write_action

CAP = 8  # moves of an episode
FUTURES = 4  # that a critique is told from, as in configs/proofs/line_walk_all_roles.yaml


@dataclass(frozen=True)
class Moved:
    """One step of a random episode.

    Attributes:
        observation: what was seen before the move.
        action: the move.
        step: what it led to.
        future: the future that was played.
    """

    observation: str
    action: str
    step: Step
    future: Foreseen

    @property
    def text(self) -> str:
        return write_action("", self.action)


async def play(environment: LineWalk, task: Task, stream: Random, begins: Sequence[str] = ()) -> list[Moved]:
    """One episode of the moves `begins`, then of uniformly random legal moves, up to CAP in all."""
    seen = await environment.reset(task)
    played: list[tuple[str, str, Step]] = []
    while len(played) < CAP and not (played and played[-1][2].done):
        chosen = begins[len(played) :][:1] or [stream.choice(environment.legal_actions(seen))]
        step = await environment.step(chosen[0])
        played.append((seen, chosen[0], step))
        seen = step.observation
    told: list[Moved] = []
    for observation, action, step in reversed(played):
        place = step.observation if step.done else read_observation(step.observation).at
        future = after(action, place, told[-1].future if told else None)
        told.append(Moved(observation, action, step, future))
    return told[::-1]


class Teller:
    """Tells demonstrations from one random episode at a time. The rules give the answers that are not played."""

    def __init__(self, environment: LineWalk, seed: int) -> None:
        self.environment, self.stream = environment, Random(seed)
        self.task = self.stream.choice(environment.tasks("train"))

    async def tell(self) -> list[dict[str, Any]]:
        """A demonstration of each role at one step; none of a role that has nothing to say there.

        The step is drawn before the episode is known. Drawn from the steps that were played, it would be the last one
        of a short episode too often, and show more moves into pits than uniform play makes.
        """
        at = self.stream.randrange(CAP)
        episode = await play(self.environment, self.task, self.stream)
        if at >= len(episode):
            return []
        moved, following = episode[at], episode[at + 1 : at + 2]
        before = [earlier.action for earlier in episode[:at]]
        described = {"observation": moved.observation, "action_text": moved.text}
        rows: list[dict[str, Any]] = [
            {"role": "policy", "observation": moved.observation, "answer": moved.action},
            {"role": "predict", **described, "answer": str(moved.future)},
        ]
        if moved.step.done or following:  # else the cap ended the episode, and nothing is known of the rest
            rows.append({"role": "bootstrap", **described, **self._backed_up(moved, *following)})
        judged, futures = await self._judge(before, moved)
        said = {"futures": futures, "optimal": judged.optimal, "answer": judged.critique}
        rows.append({"role": "evaluate", **described, **said})
        if refined := await self._refine(before, moved, judged):
            rows.append(refined)
        return rows

    def _backed_up(self, moved: Moved, following: Moved | None = None) -> dict[str, Any]:
        known = {"next_observation": moved.step.observation, "reward": moved.step.reward}
        later = (following.text, str(following.future)) if following else (None, None)
        shown = {"terminal": moved.step.done, "next_action": later[0], "next_future": later[1]}
        answer = self._ask("bootstrap", moved, action_text=moved.text, **known, **shown)
        return {
            **known,
            "next_action_text": later[0],
            "next_future": later[1],
            "answer": read_future(answer).description,
        }

    async def _judge(self, before: list[str], moved: Moved) -> tuple[Attempt, list[str]]:
        """The critique of a move, and the random futures that it is told from."""
        way = [*before, moved.action]
        episodes = [await play(self.environment, self.task, self.stream, way) for _ in range(FUTURES)]
        futures = [str(episode[len(before)].future) for episode in episodes]
        verdict = read_verdict(self._ask("evaluate", moved, action_text=moved.text, futures=futures))
        return Attempt(moved.text, verdict.optimal is True, verdict.reason), futures

    async def _refine(self, before: list[str], moved: Moved, judged: Attempt) -> dict[str, Any] | None:
        """An untried move after one or more that were judged not optimal; an optimal one is not refined."""
        others = [a for a in self.environment.legal_actions(moved.observation) if a != moved.action]
        tried = [judged]
        for action in self.stream.sample(others, self.stream.randrange(len(others))):
            episode = await play(self.environment, self.task, self.stream, [*before, action])
            tried.append((await self._judge(before, episode[len(before)]))[0])
        if any(attempt.optimal for attempt in tried):
            return None
        answer = read_action(self._ask("refine", moved, attempts=tried), self.environment.action_format)
        attempts = [
            {"action_text": a.action_text, "optimal": a.optimal, "critique": a.critique} for a in tried
        ]
        return {
            "role": "refine",
            "observation": moved.observation,
            "attempts": attempts,
            "answer": answer.action,
        }

    def _ask(self, template: str, moved: Moved, **shown: Any) -> str:
        known = {
            "instructions": self.environment.instructions,
            "state": State((), moved.observation),
            **shown,
        }
        system, user = render(template, ("system", "user"), known, self.environment.templates)
        messages = (Message(role="system", content=system), Message(role="user", content=user))
        return rules(Request(messages, Sampling(seed=self.stream.getrandbits(31))))


def demonstrations(rows: int, seed: int, walk: LineWalk | None = None) -> pl.DataFrame:
    """`rows` demonstrations of each role, from training tasks of a walk; None: with its default options."""
    walk = walk or LineWalk()
    made: dict[str, list[dict[str, Any]]] = {role: [] for role in NEEDS}
    judged: Counter[bool] = Counter()
    for number in count():
        teller = Teller(walk, derive_seed(seed, "demonstrations", number))
        for row in asyncio.run(teller.tell()):
            if row["role"] == "evaluate":
                if judged[row["optimal"]] >= rows - rows // 2:
                    continue
                judged[row["optimal"]] += 1
            made[row["role"]].append(row)
        if all(len(of_role) >= rows for of_role in made.values()):
            break
    return demonstrations_frame([row for of_role in made.values() for row in of_role[:rows]])
