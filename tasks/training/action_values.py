"""What algorithm sac trains on: values of actions, and the actions sampled under them, weighted by their values.

Q(s, a) is a linear map of the hidden state at the last token of the predict prompt, where a successor would begin to
write the future of a.
"""

from schemas.rows import ActionValue, SampledAction, TdTarget
from storage.history import State
from tasks.datasets.drawn_transitions import load_drawn
from tasks.datasets.example import Example, ValueTarget
from tasks.datasets.sft_examples import policy_example
from tasks.prompting.role_prompts import predict_prompt
from tasks.runtime.algorithm import CriticRows, PolicyRows
from tasks.runtime.context import StageContext
from tasks.runtime.lineage import Resolver
from tasks.runtime.stage import Inputs
from tasks.text.correction import label_reasoning
from tasks.training.fine_tuning import Source, nothing_to_train


def value_example(
    ctx: StageContext, row_id: str, state: State, action_text: str, target: float = 0.0, weight: float = 1.0
) -> Example:
    """(s, a) under the predict prompt, with the value that Q is to have there."""
    prompt = predict_prompt(ctx.prompts, state, action_text)
    return Example(
        row_id=row_id,
        role="critic",
        messages=prompt.messages,
        segments=(),
        weight=weight,
        value=ValueTarget(target),
        dropped=prompt.dropped,
    )


def _read_targets(resolve: Resolver) -> Inputs:
    before = resolve.iteration - 1
    stages = {"sampled_actions": "action-samples", "action_values": "action-values"}
    mixed = {
        table: resolve.last(stage, before) if resolve.mixes_policy_rows else []
        for table, stage in stages.items()
    }
    return Inputs(
        tables={
            "td_targets": [resolve.here("td-targets")],
            "replay_samples": [resolve.replay_samples()],
            "transitions": resolve.replay(),
            **mixed,
        }
    )


def _targets(ctx: StageContext) -> tuple[list[Example], Source]:
    """The TD targets. The policy rows are the weighted actions of an iteration ago."""
    examples = _remake_targets(ctx)
    if not examples:
        raise nothing_to_train("TD targets", ctx.inputs.rows("td_targets"))
    return examples, Source("sampled_actions", _weighted(ctx, set()))


def _remake_targets(ctx: StageContext) -> list[Example]:
    targets: list[TdTarget] = [row for row in ctx.inputs.rows("td_targets") if row.status == "ok"]
    weights = {row.sample_id: row.weight for row in ctx.inputs.rows("replay_samples")}
    transitions = load_drawn(ctx.inputs, [row.transition_id for row in targets])
    return [
        value_example(
            ctx, row.target_id, transitions[row.transition_id].state, transitions[row.transition_id].text,
            row.target or 0.0, weights[row.sample_id],
        )
        for row in targets
    ]  # fmt: skip


TD_TARGETS = CriticRows(
    table="td_targets",
    stage="td-targets",
    read=_read_targets,
    load=_targets,
    remake=_remake_targets,
    scores=lambda config: False,
    priorities=lambda ctx, trained: [],
)


def _read_weighted(resolve: Resolver) -> Inputs:
    return Inputs(
        tables={
            "sampled_actions": [resolve.here("action-samples")],
            "action_values": [resolve.here("action-values")],
            "transitions": resolve.replay(),
        }
    )


def _load_weighted(ctx: StageContext) -> tuple[list[Example], dict[str, float]]:
    examples = _weighted(ctx, set())
    if not examples:
        sampled: list[SampledAction] = ctx.inputs.rows("sampled_actions")
        raise nothing_to_train(
            "sampled actions", [row for row in sampled if row.place == "state"],
            "the policy stays as it is; roles.policy.structured: true has actions written in the environment's form, "
            "and rollout.uniform_until draws them from its list",
        )  # fmt: skip
    return examples, {}


def _weighted(ctx: StageContext, ids: set[str]) -> list[Example]:
    """The sampled actions that have a weight."""
    valued: list[ActionValue] = [row for row in ctx.inputs.rows("action_values") if row.weight is not None]
    if not valued:
        return []
    sampled: dict[str, SampledAction] = {row.action_id: row for row in ctx.inputs.rows("sampled_actions")}
    transitions = load_drawn(ctx.inputs, [sampled[row.action_id].transition_id for row in valued])
    section, config = ctx.config.roles.policy, ctx.config
    examples = []
    for value in valued:
        row = sampled[value.action_id]
        reasoning = label_reasoning(section, config.correction, row.reasoning)
        drawn = transitions[row.transition_id]
        examples.append(
            policy_example(ctx, row.action_id, drawn, row.thought, row.action, reasoning, value.weight or 0.0)
        )
    return examples


WEIGHTED_ACTIONS = PolicyRows(
    table="sampled_actions",
    read=_read_weighted,
    load=_load_weighted,
    remake=_weighted,
    count=lambda config: (
        min(config.improvement.states, config.replay.transitions) * config.improvement.actions
    ),
)
