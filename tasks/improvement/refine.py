"""Improving one judged action over m rounds, its thought corrected, its validity checked."""

from dataclasses import dataclass, field
from typing import Literal

from schemas.rows import Critique, Future, Refinement
from storage.history import State
from tasks.datasets.drawn_transitions import DrawnTransition
from tasks.environments.base import Task
from tasks.improvement.critique import Candidate, critique_action
from tasks.improvement.proposal import make_proposal
from tasks.roles.calls import Attempt, choose, refine, rewrite
from tasks.runtime.context import StageContext
from tasks.text.correction import correct
from tasks.text.formats import Action, read_action
from tasks.text.leaks import SOURCE_OF_THOUGHT, Leak, find_leaks


@dataclass
class Improvement:
    """All that came of improving one action: the proposals, and later rounds' critiques and futures."""

    refinements: list[Refinement] = field(default_factory=list)
    critiques: list[Critique] = field(default_factory=list)
    futures: list[Future] = field(default_factory=list)


@dataclass
class _Tried:
    """A tried action: its judgement, and the row that proposed it (None: the action we began with)."""

    attempt: Attempt
    row: Refinement | None


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
        self.own_thoughts = [critique.thought]  # the policy's own words are not a leak
        self.made = Improvement()

    async def run(self) -> Improvement:
        first = Attempt(self.critique.action_text, bool(self.critique.optimal), self.critique.critique)
        if self.critique.optimal:
            kept = Action(self.critique.thought, self.critique.action, True)
            await self._finish(
                await self._row(1, "kept", self.critique.action_text, kept), correct_thought=False
            )
            return self.made
        attempts = [_Tried(first, None)]
        rounds = self.ctx.config.improvement.rounds
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
            judged, row = await self._critique(row, round_) if rounds > 1 else (None, row)
            if rounds == 1 or (judged is not None and judged.optimal):
                await self._finish(row)
                return self.made
            self.made.refinements.append(row)
            if judged is None:
                break
            attempts.append(_Tried(judged, row))
            answers_to = self.made.critiques[-1].critique_id
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

    async def _critique(self, row: Refinement, round_: int) -> tuple[Attempt | None, Refinement]:
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
        judgement = await critique_action(
            self.ctx, self.critique.sample_id, self.transition, self.task, candidate, round_
        )
        self.made.critiques.append(judgement.critique)
        self.made.futures.extend(judgement.futures)
        self.privileged += [judgement.critique.critique, *(f.description for f in judgement.futures)]
        critique = judgement.critique
        if critique.status != "ok":
            fault = f"its critique has the status {critique.status}: {critique.error}"
            return None, row.model_copy(update={"status": "unjudged", "error": fault})
        return Attempt(row.action_text, bool(critique.optimal), critique.critique), row

    async def _choose(self, attempts: list[_Tried], round_: int, answers_to: str) -> None:
        """The final choice among the tried actions."""
        answer, number = await choose(
            self.ctx,
            self.state,
            [a.attempt for a in attempts],
            adapter="refiner",
            request_key=self._id(round_),
        )
        picked = attempts[number or 0]
        action = read_action(picked.attempt.action_text, self.form)
        row = await self._row(round_, "chosen", picked.attempt.action_text, action, answers_to)
        row = row.model_copy(update={"generation": answer.generation, "reasoning": answer.reasoning})
        if number is None:
            fault = answer.error or f"the choice names none of the answers: {answer.text[:80]!r}"
            row = row.model_copy(update={"status": "unreadable_choice", "error": fault})
        await self._finish(row, correct_thought=picked.row is not None)

    async def _finish(self, row: Refinement, *, correct_thought: bool = True) -> None:
        """Correct the thought of the final proposal and decide whether it is distilled."""
        if row.status == "ok" and correct_thought:
            row = await self._corrected(row)
        self.made.refinements.append(row.model_copy(update={"distil": row.status == "ok"}))

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

        result = await correct(
            row.thought_before,
            section,
            measure,
            lambda attempt: rewrite(
                self.ctx,
                "correct_thought",
                adapter="refiner",
                request_key=f"{row.refinement_id}/t",
                attempt=attempt,
                state=self.state,
                privileged="\n".join(self.privileged),
                thought=row.thought_before,
            ),
        )
        dropped = result.verdict == "row_dropped"
        return row.model_copy(
            update={
                "thought": result.thought,
                "verdict": result.verdict,
                "leak_before": result.before.share,
                "leak_after": result.after,
                "correction_generation": result.generation,
                "correction_reasoning": result.reasoning,
                "status": "row_dropped" if dropped else "ok",
                "error": "no rewrite of the thought passed the leak check" if dropped else None,
            }
        )
