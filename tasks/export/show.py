"""The stored texts behind one id, in order, each with the prompt that its role read.

Prompts are not stored. They are rendered again from the tables, with the configuration that the row's iteration was
begun with. Where a template has changed since, its prompt says so.
"""

from collections.abc import Iterator, Mapping, Sequence

from schemas.rows import (
    ActionValue,
    BellmanTarget,
    CorrectedTarget,
    Critique,
    Episode,
    Future,
    Refinement,
    Row,
    SampledAction,
    TdTarget,
    Transition,
)
from tasks.algorithms import algorithm_of
from tasks.datasets.drawn_transitions import DrawnTransition
from tasks.export.stored import (
    Part,
    Stored,
    UnknownId,
    fault,
    future_text,
    outcome,
    prompt_part,
    written,
)
from tasks.prompting.role_prompts import (
    Attempt,
    aggregate_prompt,
    backup_prompt,
    evaluate_prompt,
    policy_prompt,
    predict_prompt,
    refine_prompt,
)
from tasks.roles.backup import backup_inputs
from tasks.text.formats import label_thought

KEYS: Mapping[type[Row], str] = {
    Episode: "episode_id", Transition: "transition_id", BellmanTarget: "target_id", Critique: "critique_id",
    Future: "future_id", Refinement: "refinement_id", SampledAction: "action_id", TdTarget: "target_id",
}  # fmt: skip
"""The tables whose rows can be shown, and their ids. A replay sample has the id of its target."""
VERDICTS = {True: "optimal", False: "not optimal", None: "no verdict"}


def show(stored: Stored, row_id: str) -> Iterator[Part]:
    """The texts behind an id, in the order in which they came about.

    Args:
        stored: reads the rows.
        row_id: of an episode, a transition, a replay sample or its target, a critique, a future, a refinement or a
            sampled action.

    Raises:
        UnknownId: no current row has it, or the iteration has lost its configuration.
    """
    for model, key in KEYS.items():
        for row in stored.rows(model, key, row_id):
            return texts_of(stored, row)
    raise UnknownId(
        f"no row has the id '{row_id}'; ids are those of {', '.join(dict.fromkeys(KEYS.values()))} or sample_id: "
        '`nlac show --failed` lists some, and so does `nlac sql "select episode_id from episodes"`'
    )


def texts_of(stored: Stored, row: Row) -> Iterator[Part]:
    """The texts behind a row of a table in KEYS."""
    parts = {
        Episode: _of_episode, Transition: _of_transition, BellmanTarget: _of_target,
        Critique: _of_critique, Future: _of_future, Refinement: _of_refinement, SampledAction: _of_sampled,
        TdTarget: _of_td_target,
    }  # fmt: skip
    return parts[type(row)](stored, row)  # type: ignore[operator,no-any-return]


def _of_episode(stored: Stored, row: Episode) -> Iterator[Part]:
    """An episode: the first prompt of its policy, then each step. A later prompt goes on with what follows."""
    steps = sorted(stored.rows(Transition, "episode_id", row.episode_id), key=lambda step: step.step)
    ending = "success" if row.success else "done" if row.done else "truncated"
    yield Part(
        "episode",
        f"{row.environment}, task {row.task_id}, split {row.split}: {ending}, reward {row.reward:g}",
    )
    yield from fault(row)
    for step in steps:
        if step.step == 0:
            yield from _of_transition(stored, step)
        else:
            yield from written(f"step {step.step}: policy writes", step.raw_action, step.reasoning)
            yield outcome(step)


def _of_transition(stored: Stored, row: Transition) -> Iterator[Part]:
    """A step of an episode."""
    if row.generation is not None:
        yield prompt_part("policy", policy_prompt(stored.prompts(row), stored.state(row)), row.generation)
    else:
        yield Part(f"step {row.step}: observation", row.observation)
    yield from written(f"step {row.step}: policy writes", row.raw_action, row.reasoning)
    yield outcome(row)
    yield from fault(row)


def _of_target(stored: Stored, row: BellmanTarget) -> Iterator[Part]:
    """A backup: a', d', the description, and the label that the correction left."""
    drawn, prompts = stored.drawn(row.transition_id), stored.prompts(row)
    yield Part("replayed action", f"{drawn.text}\n-> {drawn.next_observation}\nreward {drawn.reward:g}")
    if row.next_action_text is not None:
        if row.next_action_generation is not None:
            yield prompt_part(
                "policy", policy_prompt(stored.prompts(row), drawn.next_state), row.next_action_generation
            )
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


def _of_critique(stored: Stored, row: Critique) -> Iterator[Part]:
    """A critique: the action, its futures and the verdict on them."""
    drawn, prompts = stored.drawn(row.transition_id), stored.prompts(row)
    if row.action_source == "fresh" and row.action_generation is not None:
        yield prompt_part("policy", policy_prompt(stored.prompts(row), drawn.state), row.action_generation)
    yield from written(f"{row.action_source} action", row.action_text, row.action_reasoning)
    futures = stored.rows(Future, "critique_id", row.critique_id)
    for number, future in enumerate(futures):
        yield from _predicted(stored, future, row, drawn, prompted=number == 0)
    texts = [future.description for future in futures if future.status == "ok"]
    if row.generation is not None:
        config = prompts.config.roles.evaluate
        told = row.optimal if row.yes_probability is not None and not config.structured else None
        told = None if config.thinking else told
        if algorithm_of(prompts.config).improves.verdict.judges:
            read = evaluate_prompt(prompts, drawn.state, row.action_text, texts, verdict=told)
        else:
            read = aggregate_prompt(prompts, drawn.state, row.action_text, texts)
        yield prompt_part("evaluator", read, row.generation)
    optimal = VERDICTS[row.optimal]
    scored = "" if row.yes_probability is None else f", p(yes) {row.yes_probability:.3f}"
    yield from written(f"evaluator: {optimal}{scored}", row.critique, row.reasoning)
    yield from fault(row)


def _of_future(stored: Stored, row: Future) -> Iterator[Part]:
    """A future of a critiqued action."""
    (critique,) = stored.rows(Critique, "critique_id", row.critique_id)
    yield from _predicted(stored, row, critique, stored.drawn(critique.transition_id))


def _predicted(
    stored: Stored, row: Future, critique: Critique, drawn: DrawnTransition, *, prompted: bool = True
) -> Iterator[Part]:
    if prompted and row.generation is not None:
        read = predict_prompt(stored.prompts(row), drawn.state, critique.action_text)
        yield prompt_part("successor", read, row.generation)
    title = "Monte-Carlo rollout" if row.source == "rollout" else "successor writes"
    yield from written(title, future_text(row.thought, row.description), row.reasoning)
    yield from fault(row)


def _of_refinement(stored: Stored, row: Refinement) -> Iterator[Part]:
    """A proposal, and the critiques of the actions tried before it."""
    drawn, prompts = stored.drawn(row.transition_id), stored.prompts(row)
    judged = sorted(stored.rows(Critique, "sample_id", row.sample_id), key=lambda critique: critique.round)
    tried = [critique for critique in judged if critique.round < row.round and critique.status == "ok"]
    attempts = [Attempt(c.action_text, c.optimal, c.critique) for c in tried]
    for number, attempt in enumerate(attempts):
        verdict = VERDICTS[attempt.optimal]
        yield Part(f"tried action {number + 1}: {verdict}", f"{attempt.action_text}\n-- {attempt.critique}")
    if row.kind == "refined" and row.generation is not None:
        yield prompt_part("refiner", refine_prompt(prompts, drawn.state, attempts), row.generation)
    elif row.kind == "chosen" and any(critique.yes_probability is None for critique in tried):
        read = prompts.prompt("refine", "choose", state=drawn.state, attempts=attempts)
        yield prompt_part("refiner", read, row.generation)
    yield from written(f"{row.kind} action", row.action_text, row.reasoning)
    if row.correction_generation is not None:
        known = [critique for critique in judged if critique.round <= row.round]
        read = prompts.prompt(
            "correct", "correct_thought", hidden=False, state=drawn.state,
            privileged="\n".join(_privileged(stored, known)),
            thought=label_thought(row.thought_before, prompts.config.roles.policy.line_limit),
        )  # fmt: skip
        yield prompt_part("corrector", read, row.correction_generation)
    leak = (
        ""
        if row.leak_before is None
        else f", leak {row.leak_before:.2f} before, {row.leak_after or 0:.2f} after"
    )
    distilled = "distilled" if row.distil else "not distilled"
    yield from written(
        f"{distilled} ({row.distil_reason or row.status}){leak}",
        f"{row.thought}\n{row.action}".strip(),
        row.label_reasoning,
    )
    yield from fault(row)


def _of_sampled(stored: Stored, row: SampledAction) -> Iterator[Part]:
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


def _of_td_target(stored: Stored, row: TdTarget) -> Iterator[Part]:
    """A TD target: the transition, the actions sampled at s', and their values."""
    drawn = stored.drawn(row.transition_id)
    yield Part("replayed action", f"{drawn.text}\n-> {drawn.next_observation}\nreward {drawn.reward:g}")
    if row.next_values:
        values = ", ".join(f"{value:.3f}" for value in row.next_values)
        yield Part(
            f"Q of the actions sampled at s' by {row.target_version}", f"{values}: V {row.soft_value:.3f}"
        )
    if row.target is not None:
        yield Part("target", f"{row.target:.3f}")
    yield from fault(row)


def _privileged(stored: Stored, critiques: Sequence[Critique]) -> Iterator[str]:
    for critique in critiques:
        yield critique.critique
        for future in stored.rows(Future, "critique_id", critique.critique_id):
            if future.status == "ok":
                yield future.description
