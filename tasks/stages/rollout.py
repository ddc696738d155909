"""Stage rollout: the current policy plays training episodes, all at once."""

import random

from schemas.config import Config
from schemas.rows import Episode, Transition
from tasks.environments.splits import played_tasks
from tasks.measures.entropy import action_entropy
from tasks.roles.episode import EpisodeResult, episode_metrics, play_all, repeated
from tasks.runtime.algorithm import Algorithm
from tasks.runtime.context import StageContext
from tasks.runtime.lineage import Resolver
from tasks.runtime.stage import Bound, Inputs, Output, Stage, episode_bound
from tasks.seeding import derive_seed


async def rollout(ctx: StageContext) -> Output:
    """Play `rollout.episodes` training tasks, drawn anew each iteration and none of them a validation task, each
    `rollout.repeats` times."""
    known = played_tasks(ctx.environment, "train")
    stream = random.Random(derive_seed(ctx.config.seed, "rollout-tasks", ctx.iteration))
    section = ctx.config.rollout
    count = section.first_episodes or section.episodes if ctx.iteration == 0 else section.episodes
    drawn = stream.sample(known, count) if count <= len(known) else stream.choices(known, k=count)
    tasks = repeated(drawn, section.repeats)
    results = await play_all(ctx, {"train": tasks}, section.repeats)
    played = [t for r in results for t in r.transitions]
    return Output(
        tables={"episodes": [r.episode for r in results], "transitions": played},
        rows_in=len(tasks),
        metrics={
            **episode_metrics(results),
            "action_entropy": action_entropy(t.action for t in played),
            "first_action_entropy": action_entropy(t.action for t in played if t.step == 0),
        },
    )


def _inputs(resolve: Resolver) -> Inputs:
    return Inputs(adapters={"policy": resolve.policy()})


def _bound(config: Config, algorithm: Algorithm) -> Bound:
    return episode_bound(config, config.rollout.episodes * config.rollout.repeats)


STAGE = Stage(
    name="rollout",
    version=5,
    pool="inference",
    reads=(),
    writes=(Episode, Transition),
    config=("environment", "rollout"),
    roles=("policy",),
    templates=("policy",),
    inputs=_inputs,
    bound=_bound,
    run=rollout,
    item=EpisodeResult,
)
