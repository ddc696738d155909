"""The texts behind a backup: of the language critic, and of the scalar one."""

from collections.abc import Iterator

from schemas.rows import ActionValue, BellmanTarget, CorrectedTarget, SampledAction, TdTarget
from tasks.datasets.drawn_transitions import DrawnTransition
from tasks.export.stored import Part, Stored, fault, future_text, prompt_part, written
from tasks.prompting.role_prompts import backup_prompt, policy_prompt, predict_prompt
from tasks.roles.backup import backup_inputs
from tasks.text.formats import label_thought


def of_target(stored: Stored, row: BellmanTarget) -> Iterator[Part]:
    """A backup: a', d', the description, and the label that the correction left."""
    drawn, prompts = stored.drawn(row.transition_id), stored.prompts(row)
    yield _replayed(drawn)
    if row.next_action_text is not None:
        if row.next_action_generation is not None:
            yield prompt_part("policy", policy_prompt(prompts, drawn.next_state), row.next_action_generation)
        yield from written("policy writes a'", row.next_action_text, row.next_action_reasoning)
    if row.next_future_generation is not None and row.next_action_text is not None:
        read = predict_prompt(prompts, drawn.next_state, row.next_action_text)
        yield prompt_part("successor", read, row.next_future_generation)
        yield from written("successor writes d'", row.next_future or "", row.next_future_reasoning)
    if row.generation is not None:
        yield prompt_part("backup", backup_prompt(prompts, backup_inputs(row, drawn)), row.generation)
        yield from written("backup writes", future_text(row.thought, row.description), row.reasoning)
    yield from fault(row)
    for label in stored.rows(CorrectedTarget, "target_id", row.target_id):
        yield from _label(stored, label, row, drawn)


def _label(
    stored: Stored, label: CorrectedTarget, row: BellmanTarget, drawn: DrawnTransition
) -> Iterator[Part]:
    prompts = stored.prompts(label)
    if label.leaks:
        yield Part("leaks in the thought", "\n".join(label.leaks))
    if label.generation is not None:
        read = prompts.prompt(
            "correct", "correct_target", hidden=False,
            privileged="\n".join(backup_inputs(row, drawn).privileged),
            thought=label_thought(row.thought, prompts.config.roles.predict.line_limit),
            description=row.description,
        )  # fmt: skip
        yield prompt_part("corrector", read, label.generation)
    said = f"label, {label.verdict}: leak {label.leak_before:.2f} before, {label.leak_after:.2f} after"
    yield from written(said, future_text(label.thought, label.description), label.label_reasoning)
    yield from fault(label)


def of_sampled(stored: Stored, row: SampledAction) -> Iterator[Part]:
    """An action that was sampled at s or s', and what the critic says of one at s."""
    drawn = stored.drawn(row.transition_id)
    state = drawn.state if row.place == "state" else drawn.next_state
    if row.generation is not None:
        yield prompt_part("policy", policy_prompt(stored.prompts(row), state), row.generation)
    yield from written("policy writes", row.action_text, row.reasoning)
    yield from fault(row)
    for rated in stored.rows(ActionValue, "action_id", row.action_id):
        if rated.value is not None and rated.weight is not None:
            yield Part(f"Q by {rated.critic_version}", f"{rated.value:.3f}, weight {rated.weight:.3f}")
        yield from fault(rated)


def of_td_target(stored: Stored, row: TdTarget) -> Iterator[Part]:
    """A TD target: the transition, the actions sampled at s', and their values."""
    drawn = stored.drawn(row.transition_id)
    yield _replayed(drawn)
    if row.next_values:
        values = ", ".join(f"{value:.3f}" for value in row.next_values)
        yield Part(
            f"Q of the actions sampled at s' by {row.target_version}", f"{values}: V {row.soft_value:.3f}"
        )
    if row.target is not None:
        yield Part("target", f"{row.target:.3f}")
    yield from fault(row)


def _replayed(drawn: DrawnTransition) -> Part:
    return Part("replayed action", f"{drawn.text}\n-> {drawn.next_observation}\nreward {drawn.reward:g}")
