"""What policy-gradient algorithms train the policy on: the turns that it has just sampled, with their advantages."""

from collections.abc import Iterator

import polars as pl

from schemas.config import Config
from schemas.rows import Advantage
from tasks.datasets.drawn_transitions import load_drawn
from tasks.datasets.example import Example, Sampled, ValueTarget
from tasks.engines.backends import EngineConfigError, declared_capabilities
from tasks.environments.base import Environment
from tasks.prompting.role_prompts import policy_prompt
from tasks.runtime.algorithm import PolicyRows
from tasks.runtime.context import StageContext
from tasks.runtime.lineage import Resolver
from tasks.runtime.stage import Inputs
from tasks.training.policy_rows import SUCCESSFUL_ACTIONS


def sampled_examples(ctx: StageContext) -> list[Example]:
    """A row for each rated turn: the prompt that it was sampled under, its tokens, and its advantage."""
    rated: dict[str, Advantage] = {
        row.transition_id: row for row in ctx.inputs.rows("advantages") if row.status == "ok"
    }
    transitions = load_drawn(ctx.inputs, rated)
    tokens = (
        ctx.inputs.scan("transitions")
        .filter(pl.col("transition_id").is_in(list(rated)))
        .select(
            "transition_id",
            pl.col("token_ids").list.concat(_ended_by("end_token_id")),
            pl.col("logprobs").list.concat(_ended_by("end_logprob")),
        )
        .collect()
    )
    examples = []
    for transition_id, token_ids, logprobs in tokens.iter_rows():
        advantage = rated[transition_id]
        assert advantage.advantage is not None
        prompt = policy_prompt(ctx.prompts, transitions[transition_id].state)
        examples.append(
            Example(
                row_id=transition_id,
                role="policy",
                messages=prompt.messages,
                segments=(transitions[transition_id].text,),
                scored_segment=0,
                tools=prompt.tools,
                dropped=prompt.dropped,
                sampled=Sampled(
                    token_ids=tuple(token_ids),
                    logprobs=tuple(logprobs),
                    thinking=ctx.config.roles.policy.thinking,
                    advantage=advantage.advantage,
                    episode_id=advantage.episode_id,
                ),
                value=_value_target(advantage) if ctx.algorithm.has_values else None,
            )
        )
    return examples


def _value_target(advantage: Advantage) -> ValueTarget:
    return ValueTarget(advantage.return_estimate or 0.0, old=advantage.baseline or 0.0)


def _ended_by(column: str) -> pl.Expr:
    """What a turn was ended by, as a list of one; none where it was not ended by a token."""
    return pl.concat_list(column).list.drop_nulls()


def _played_by_the_policy(config: Config, iteration: int) -> bool:
    """Whether the policy acted in an iteration's rollout, and not uniform exploration."""
    return iteration >= config.rollout.uniform_until


def _read(resolve: Resolver) -> Inputs:
    if not _played_by_the_policy(resolve.config, resolve.iteration):
        return SUCCESSFUL_ACTIONS.read(resolve)
    tables = {"transitions": [resolve.here("rollout")], "advantages": [resolve.here("advantages")]}
    return Inputs(tables=tables)


def _load(ctx: StageContext) -> tuple[list[Example], dict[str, float]]:
    if not _played_by_the_policy(ctx.config, ctx.iteration):
        return SUCCESSFUL_ACTIONS.load(ctx)
    return sampled_examples(ctx), {}


def _remake(ctx: StageContext, ids: set[str]) -> list[Example]:
    if not _played_by_the_policy(ctx.config, ctx.iteration):
        return SUCCESSFUL_ACTIONS.remake(ctx, ids)
    return sampled_examples(ctx)


SAMPLED_TURNS = PolicyRows(
    table="transitions",
    read=_read,
    load=_load,
    remake=_remake,
    count=lambda config: config.rollout.episodes * config.rollout.repeats * config.rollout.max_steps,
    may_be_none=True,
)


def check_sampling(config: Config, environment: Environment) -> Iterator[str]:
    """What the turns of a policy gradient are sampled with: the policy's own distribution, token by token."""
    needs = f"algorithm {config.algorithm} needs turns that the policy itself has just sampled"
    policy, name = config.roles.policy, config.roles.policy.engine
    if config.rollout.source == "none":
        yield f"rollout.source: {needs}, and nothing is played; set it to environment"
    if config.rollout.exploration:
        yield f"rollout.exploration: {needs}; set it to 0"
    for field in ("temperature", "top_p"):
        if getattr(policy, field) != 1.0:
            yield f"roles.policy.{field}: {needs}, from its whole distribution; set it to 1"
    if policy.structured:
        yield (
            f"roles.policy.structured: {needs}, and a grammar would mask what it may sample; set it to false"
        )
    try:
        gives_tokens = declared_capabilities(config.engines[name]).token_ids
    except EngineConfigError:
        return  # reported with the engine
    if config.engines[name].model is not None or not gives_tokens:
        yield (
            f"roles.policy.engine: {needs}, and engine '{name}' does not play the model in training, or reports no "
            "tokens; route the role to a transformers or vllm engine without `model`"
        )
