"""The texts behind an improvement: a critique with its futures, and a proposal to do better."""

from collections.abc import Iterator, Sequence

from schemas.rows import Critique, Future, Refinement
from tasks.algorithms import algorithm_of
from tasks.datasets.drawn_transitions import DrawnTransition
from tasks.export.stored import Part, Stored, fault, future_text, prompt_part, written
from tasks.prompting.role_prompts import (
    Attempt,
    aggregate_prompt,
    evaluate_prompt,
    policy_prompt,
    predict_prompt,
    refine_prompt,
)
from tasks.text.formats import label_thought

VERDICTS = {True: "optimal", False: "not optimal", None: "no verdict"}


def of_critique(stored: Stored, row: Critique) -> Iterator[Part]:
    """A critique: the action, its futures and the verdict on them."""
    drawn, prompts = stored.drawn(row.transition_id), stored.prompts(row)
    if row.action_source == "fresh" and row.action_generation is not None:
        yield prompt_part("policy", policy_prompt(prompts, drawn.state), row.action_generation)
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


def of_future(stored: Stored, row: Future) -> Iterator[Part]:
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


def of_refinement(stored: Stored, row: Refinement) -> Iterator[Part]:
    """A proposal; what it is made from is `tried_before`."""
    drawn, prompts = stored.drawn(row.transition_id), stored.prompts(row)
    tried = tried_before(stored, row)
    attempts = [Attempt(c.action_text, c.optimal, c.critique) for c in tried]
    if row.kind == "refined" and row.generation is not None:
        yield prompt_part("refiner", refine_prompt(prompts, drawn.state, attempts), row.generation)
    elif row.kind == "chosen" and any(critique.yes_probability is None for critique in tried):
        read = prompts.prompt("refine", "choose", state=drawn.state, attempts=attempts)
        yield prompt_part("refiner", read, row.generation)
    yield from written(f"{row.kind} action", row.action_text, row.reasoning)
    if row.correction_generation is not None:
        known = [critique for critique in _judged(stored, row) if critique.round <= row.round]
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


def tried_before(stored: Stored, row: Refinement) -> list[Critique]:
    """The critiques that a proposal is made from, in the order of their rounds."""
    return [one for one in _judged(stored, row) if one.round < row.round and one.status == "ok"]


def _judged(stored: Stored, row: Refinement) -> list[Critique]:
    return sorted(stored.rows(Critique, "sample_id", row.sample_id), key=lambda critique: critique.round)


def _privileged(stored: Stored, critiques: Sequence[Critique]) -> Iterator[str]:
    for critique in critiques:
        yield critique.critique
        for future in stored.rows(Future, "critique_id", critique.critique_id):
            if future.status == "ok":
                yield future.description
