"""The retention check: how far the policy has drifted from the base model on general prompts.

The prompts and their reference answers are fixed (`tasks.datasets.chats.RETENTION`). Both models score the same tokens
and nothing is sampled, so the figures have no noise and compare between iterations.

- drift: mean over an answer's tokens of log p_policy - log p_base.
- KL: mean over the same positions of a lower bound of KL(p_base || p_policy), from the TOP_K most probable tokens of
  each model. The vocabulary splits into C, tokens in both lists; U, in the base's list only; and E, all others.
  Merging tokens never increases a KL divergence, so with U and E as one bucket each

      KL >= sum_{v in C} p(v) log(p(v) / q(v)) + p_U log(p_U / q_U) + p_E log(p_E / (1 - q_C - q_U))

  where p is the base's probability and q the policy's, summed over a set's tokens. Only q_U is unknown, the policy's
  probability of tokens that left its list. It is at most the mass outside that list, and at most |U| times the list's
  smallest probability. The bound minimizes the right side over q_U within these limits. It equals the KL divergence if
  the lists are the vocabulary, and is large if the policy has nothing in common with its base.
"""

from collections.abc import Sequence
from math import exp, fsum, log

from schemas.rows import Retention
from tasks.chat.messages import RequestError
from tasks.datasets.chats import RETENTION, Conversation, load_conversations
from tasks.engines.protocol import Scores
from tasks.runtime.context import StageContext
from tasks.runtime.role_client import BASE
from tasks.runtime.stage import StageFailed

TOP_K = 50
SMALLEST = 1e-6  # smallest remaining mass; less than that is rounding in 1 - sum of float32 probabilities

TopK = tuple[Sequence[int], Sequence[float]]  # token ids and their log-probabilities


async def measure_retention(ctx: StageContext) -> list[Retention]:
    """Score every reference answer under the base model and under the policy, `inputs.adapters["policy"]`.

    Args:
        ctx: context of a stage that plays the role policy and has no input adapter "base".

    Raises:
        StageFailed: the policy's engine gives no top-k log-probabilities.
    """
    return await ctx.map(load_conversations(RETENTION), lambda c: _measure(ctx, c), "prompts")


async def _measure(ctx: StageContext, conversation: Conversation) -> Retention:
    known = {
        "run": ctx.config.run,
        "iteration": ctx.iteration,
        "prompt_id": f"retention/{conversation.line}",
        "prompt": conversation.messages[-1]["content"],
        "policy_version": ctx.roles.model_version("policy", "policy"),
    }
    try:
        base = await _score(ctx, conversation, BASE)
        trained = ctx.inputs.adapters["policy"] is not None
        policy = await _score(ctx, conversation, "policy") if trained else base
    except RequestError as error:
        return Retention(**known, status="engine_error", error=str(error), tokens=0)
    (base_logprobs,), (policy_logprobs,) = base.segments, policy.segments
    divergences = [divergence(*pair) for pair in zip(_top(base), _top(policy), strict=True)]
    base_mean, policy_mean = _mean(base_logprobs), _mean(policy_logprobs)
    return Retention(
        **known,
        tokens=len(base_logprobs),
        base_logprob=base_mean,
        policy_logprob=policy_mean,
        drift=policy_mean - base_mean,
        kl=_mean(divergences),
    )


async def _score(ctx: StageContext, conversation: Conversation, adapter: str) -> Scores:
    request_key = f"retention/{conversation.line}"
    segments = (conversation.answer,)
    scores = await ctx.roles.scores(
        "policy", conversation.messages, segments, adapter=adapter, request_key=request_key, top_k=TOP_K
    )
    if scores is None:
        raise StageFailed(
            f"evaluation.retention: engine '{ctx.config.roles.policy.engine}' of role policy gives no top-k "
            "log-probabilities; set it to false, or route the policy to a transformers or vllm engine"
        )
    return scores


def _top(scores: Scores) -> list[TopK]:
    return list(zip(scores.top_ids[0], scores.top_logprobs[0], strict=True))


def divergence(base: TopK, policy: TopK) -> float:
    """The lower bound of KL(p_base || p_policy) at one position, in nats, as derived in the module's docstring.

    Args:
        base: the base model's most probable tokens there.
        policy: the policy's most probable tokens there.
    """
    ours = dict(zip(*policy, strict=True))
    common = [(p, ours[token]) for token, p in zip(*base, strict=True) if token in ours]
    left = [exp(p) for token, p in zip(*base, strict=True) if token not in ours]  # U
    p_left = fsum(left)
    p_others = max(SMALLEST, 1.0 - fsum(exp(p) for p, _ in common) - p_left)
    q_free = max(SMALLEST, 1.0 - fsum(exp(q) for _, q in common))  # of U and E together
    q_outside = max(SMALLEST, 1.0 - fsum(map(exp, policy[1])))
    q_left = min(q_outside, len(left) * exp(min(policy[1])), q_free * p_left / (p_left + p_others))
    bound = fsum(exp(p) * (p - q) for p, q in common)
    bound += p_others * log(p_others / max(SMALLEST, q_free - q_left))
    return max(0.0, bound + (p_left * log(p_left / q_left) if left else 0.0))


def retention_metrics(rows: Sequence[Retention]) -> dict[str, float]:
    """Mean drift and KL over the prompts that were scored."""
    drifts = [row.drift for row in rows if row.drift is not None]
    divergences = [row.kl for row in rows if row.kl is not None]
    return {"retention_drift": _mean(drifts), "retention_kl": _mean(divergences)} if drifts else {}


def _mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values)
