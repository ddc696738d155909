"""Refining an action over m rounds: critiqued again in each, its thought corrected, its validity checked.

An action judged optimal is kept without a request: it anchors the policy where it is good. After the last round a
final choice picks among the tried actions: the refiner's, or the most probable one where verdicts are scored. A
refinement that the environment would not accept, or whose verdict can't be read, ends the rounds. The choice is then
among the earlier actions. What is distilled of it, `tasks.improvement.distillation` says.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from schemas.config import Config
from schemas.rows import Critique, Future, Refinement
from storage.history import State
from tasks.datasets.drawn_transitions import DrawnTransition
from tasks.environments.base import Task
from tasks.improvement.critique import Candidate, critique_action
from tasks.improvement.distillation import DISTILLED, decided, final_reason, most_probable
from tasks.improvement.validate import make_proposal
from tasks.prompting.role_prompts import Attempt
from tasks.roles.answers import cut_answer, read_whole_action
from tasks.roles.corrector import rewrite
from tasks.roles.refiner import choose, refine
from tasks.runtime.algorithm import Algorithm, Method
from tasks.runtime.context import StageContext
from tasks.runtime.stage import Bound
from tasks.text.correction import Rewrite, correct_label, label_reasoning
from tasks.text.formats import Action
from tasks.text.leaks import SOURCE_OF_THOUGHT, Leak, find_leaks


@dataclass
class Improved:
    """All that came of improving one action: the proposals, and later rounds' critiques and futures."""

    refinements: list[Refinement] = field(default_factory=list)
    critiques: list[Critique] = field(default_factory=list)
    futures: list[Future] = field(default_factory=list)


@dataclass
class _Tried:
    """A tried action's critique, and the row that proposed it (None: the action to improve)."""

    critique: Critique
    row: Refinement | None

    @property
    def attempt(self) -> Attempt:
        """As prompts show it."""
        return Attempt(self.critique.action_text, bool(self.critique.optimal), self.critique.critique)


class Refiner:
    """Improves one action; `run` is the algorithm, the rest its steps."""

    def __init__(
        self,
        ctx: StageContext,
        critique: Critique,
        transition: DrawnTransition,
        task: Task,
        futures: list[str],
    ) -> None:
        self.ctx, self.critique, self.transition, self.task = ctx, critique, transition, task
        self.state: State = transition.state
        self.form = ctx.environment.action_format
        self.privileged = [critique.critique, *futures]
        # The policy's own words are not a leak.
        self.own_thoughts = [critique.thought, critique.action_reasoning or ""]
        self.made = Improved()

    async def run(self) -> Improved:
        if self.critique.optimal:
            kept = read_whole_action(self.critique.action_text, self.critique.action_generation, self.form)
            row = await self._row(1, "kept", self.critique.action_text, kept)
            await self._finish(row, self.critique, self.critique.action_reasoning, correct_thought=False)
            return self.made
        attempts = [_Tried(self.critique, None)]
        rounds = self.ctx.config.improvement.rounds
        judges = judges_refinements(self.ctx.config)
        answers_to = self.critique.critique_id
        for round_ in range(1, rounds + 1):
            answer, action = await refine(
                self.ctx,
                self.state,
                [a.attempt for a in attempts],
                adapter="refiner",
                request_key=self._id(round_),
            )
            row = await self._row(round_, "refined", answer.text, action, answers_to)
            row = row.model_copy(update={"generation": answer.generation, "reasoning": answer.reasoning})
            if answer.error:
                row = row.model_copy(update={"status": "engine_error", "error": answer.error})
            elif fault := cut_answer(self.ctx.config.roles.refine, answer):
                row = row.model_copy(update={"status": "cut", "error": fault})
            critique, row = await self._critique(row, round_) if judges else (None, row)
            if rounds == 1 or (critique is not None and critique.optimal):
                await self._finish(row, critique, row.reasoning)
                return self.made
            self.made.refinements.append(decided(row, "not_final" if row.status == "ok" else "failed"))
            if critique is None:
                break
            attempts.append(_Tried(critique, row))
            answers_to = critique.critique_id
        if len(attempts) > 1:
            await self._choose(attempts, round_ + 1, answers_to)
        return self.made

    def _id(self, round_: int) -> str:
        return f"{self.critique.sample_id}/r/{round_}"

    async def _row(
        self,
        round_: int,
        kind: Literal["kept", "refined", "chosen"],
        text: str,
        action: Action,
        answers_to: str | None = None,
    ) -> Refinement:
        return await make_proposal(
            self.ctx,
            self.critique,
            self.state,
            self.task,
            round_=round_,
            kind=kind,
            text=text,
            action=action,
            answers_to=answers_to,
        )

    async def _critique(self, row: Refinement, round_: int) -> tuple[Critique | None, Refinement]:
        """Critique a refinement that could be played. Without a readable verdict it is no attempt either: unjudged."""
        if row.status != "ok":
            return None, row
        candidate = Candidate(
            "refined",
            row.action_text,
            Action(row.thought, row.action, row.valid),
            row.generation,
            reasoning=row.reasoning,
        )
        critiqued = await critique_action(
            self.ctx, self.critique.sample_id, self.transition, self.task, candidate, round_
        )
        self.made.critiques.append(critiqued.critique)
        self.made.futures.extend(critiqued.futures)
        self.privileged += [critiqued.critique.critique, *(f.description for f in critiqued.futures)]
        critique = critiqued.critique
        if critique.status != "ok":
            fault = f"its critique has the status {critique.status}: {critique.error}"
            return None, row.model_copy(update={"status": "unjudged", "error": fault})
        return critique, row

    async def _choose(self, attempts: list[_Tried], round_: int, answers_to: str) -> None:
        """The final choice among the tried actions; nobody is asked where their verdicts are probabilities."""
        critiques = [a.critique for a in attempts]
        answer = None
        if any(critique.yes_probability is None for critique in critiques):
            answer, number = await choose(
                self.ctx,
                self.state,
                [a.attempt for a in attempts],
                adapter="refiner",
                request_key=self._id(round_),
            )
        else:
            number = most_probable(critiques, self.ctx.roles.seed("choice", self.critique.sample_id))
        picked = attempts[number or 0]
        critique = picked.critique
        action = read_whole_action(critique.action_text, critique.action_generation, self.form)
        row = await self._row(round_, "chosen", critique.action_text, action, answers_to)
        made, reasoning = critique.action_generation, critique.action_reasoning
        if answer is not None:
            made, reasoning = answer.generation, answer.reasoning
        row = row.model_copy(update={"generation": made, "reasoning": reasoning})
        if answer is not None and number is None:
            fault = answer.error or f"the choice names none of the answers: {answer.text[:80]!r}"
            row = row.model_copy(update={"status": "unreadable_choice", "error": fault})
        compared = len({critique.action for critique in critiques}) > 1
        hidden, changed = critique.action_reasoning, picked.row is not None
        await self._finish(row, critique, hidden, compared=compared, correct_thought=changed)

    async def _finish(
        self,
        row: Refinement,
        critique: Critique | None,
        hidden: str | None,
        *,
        compared: bool = False,
        correct_thought: bool = True,
    ) -> None:
        """Decide whether the final proposal, with its critique, is distilled, and correct its thought and the hidden
        one behind it."""
        config = self.ctx.config
        hidden = label_reasoning(config.roles.policy, config.correction, hidden)
        if row.status == "ok":
            row = row.model_copy(update={"label_reasoning": hidden})
        gain = config.improvement.require_gain
        reason = final_reason(row, self.critique, critique, compared=compared, require_gain=gain)
        if reason in DISTILLED and correct_thought:
            row = await self._corrected(row)
            reason = reason if row.status == "ok" else "failed"
        self.made.refinements.append(decided(row, reason))

    async def _corrected(self, row: Refinement) -> Refinement:
        section = self.ctx.config.correction
        visible = [text for turn in self.state.turns for text in (turn.observation, turn.text)]

        def measure(thought: str) -> Leak:
            return find_leaks(
                thought,
                privileged=self.privileged,
                visible=[*visible, self.state.observation, *self.own_thoughts, row.action],
                source=SOURCE_OF_THOUGHT,
                ngram=section.ngram,
            )

        async def ask(text: str, hidden: bool, attempt: int) -> Rewrite:
            return await rewrite(
                self.ctx,
                "correct_thought",
                adapter="refiner",
                request_key=f"{row.refinement_id}/{'h' if hidden else 't'}",
                attempt=attempt,
                line_limit=self.ctx.config.roles.policy.line_limit,
                hidden=hidden,
                state=self.state,
                privileged="\n".join(self.privileged),
                thought=text,
            )

        result = await correct_label(row.thought, row.label_reasoning, section, measure, ask)
        return row.model_copy(
            update={
                **result.columns,
                "correction_generation": result.thought.generation,
                "correction_reasoning": result.thought.reasoning,
                "reasoning_generation": result.hidden.generation if result.hidden else None,
            }
        )


def judges_refinements(config: Config) -> bool:
    """Whether refinements are critiqued: in several rounds, or where they have to gain."""
    return config.improvement.rounds > 1 or config.improvement.require_gain


async def refine_action(
    ctx: StageContext,
    tried: Sequence[Critique],
    transition: DrawnTransition,
    task: Task,
    futures: Mapping[str, list[str]],
) -> Improved:
    """Refine the one action that was critiqued at a state."""
    (critique,) = tried
    return await Refiner(ctx, critique, transition, task, futures[critique.critique_id]).run()


def refinement_bound(config: Config, algorithm: Algorithm) -> Bound:
    """m rounds, the corrections, each refinement's critique where they are judged, and a final choice where m > 1 and
    verdicts are written."""
    states = min(config.improvement.states, config.replay.transitions)
    rounds, roles = config.improvement.rounds, config.roles
    rewrites = config.correction.attempts if config.correction.enabled else 0
    parts = 1 + roles.policy.thinking  # thoughts of a label: visible, and hidden
    how = algorithm.improves
    futures = algorithm.future_count(config) * how.futures.requests(config)
    critiqued = states * rounds if judges_refinements(config) else 0
    scores = how.verdict.scores(config)
    choices = states if rounds > 1 and not scores else 0
    tokens = (
        (states * rounds + choices) * roles.refine.max_tokens
        + states * rewrites * roles.correct.max_tokens * parts
        + critiqued
        * (
            futures * config.role(how.futures.role).max_tokens
            + how.verdict.requests * roles.evaluate.max_tokens
        )
    )
    verdict = how.verdict.requests + scores
    requests = states * (rounds + rewrites * parts) + critiqued * (futures + verdict) + choices
    return Bound(
        requests, tokens, f"{rounds} rounds and corrections; none where the action is judged optimal"
    )


REFINED = Method(actions=lambda config: [None], improve=refine_action, bound=refinement_bound)
