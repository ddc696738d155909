"""Stage cot-correction: rewrite each target's reasoning so that it asserts nothing the predict prompt
won't show.

The description is copied, never regenerated: stating the outcome is its purpose. The stage also scores the corrected
label under the backup prompt: log p_B of the description's tokens. The priorities need this score, so it is left out
with uniform replay (`replay.alpha: 0`) unless the loss is token_kl. Where J pairs (a', d') were drawn, the label is
scored under each of the J prompts. For `backup.loss: token_kl` it keeps the top-k log-probabilities too.
"""

import asyncio

from schemas.config import Config
from schemas.rows import BellmanTarget, CorrectedTarget, Transition
from tasks.chat.messages import RequestError
from tasks.datasets.drawn_transitions import DrawnCosts, DrawnTransition, load_drawn
from tasks.engines.protocol import Scores
from tasks.prompting.role_prompts import BackupInputs, backup_prompt, whole_label
from tasks.roles.backup import backup_inputs, other_backup_inputs
from tasks.roles.corrector import rewrite
from tasks.runtime.algorithm import Algorithm
from tasks.runtime.context import StageContext
from tasks.runtime.lineage import Resolver
from tasks.runtime.stage import Bound, Inputs, Output, Stage, StageFailed
from tasks.text.correction import Rewrite, correct_label, label_reasoning
from tasks.text.discounting import measure_discounting
from tasks.text.formats import future_segments, label_thought
from tasks.text.leaks import SOURCE_OF_TARGET, Leak, find_leaks


async def cot_correction(ctx: StageContext) -> Output:
    """Correct every usable target.

    Raises:
        StageFailed: there is none, or the engine scores none of them.
    """
    targets: list[BellmanTarget] = [t for t in ctx.inputs.rows("bellman_targets") if t.status == "ok"]
    if not targets:
        raise StageFailed(
            'no Bellman target is usable; look at: nlac sql "select status, error from bellman_targets"'
        )
    costs = DrawnCosts(ctx.inputs, (t.transition_id for t in targets))

    def cost(target: BellmanTarget) -> float:
        return (1 + len(target.other_draws or ())) * costs.text(target.transition_id)

    transitions = load_drawn(ctx.inputs, (t.transition_id for t in ctx.dealt(targets, cost)))

    async def work(target: BellmanTarget) -> CorrectedTarget:
        return await correct_target(ctx, target, transitions[target.transition_id])

    rows = await ctx.map(targets, work, "targets", cost)
    if all(row.status == "score_failed" for row in rows):
        raise StageFailed(f"no corrected target could be scored under the backup prompt: {rows[0].error}")
    count = len(rows)
    bootstrapped = [r for r in rows if r.discount_next is not None]
    return Output(
        tables={"corrected_targets": list(rows)},
        rows_in=count,
        metrics={
            **{f"{v}_share": sum(r.verdict == v for r in rows) / count for v in VERDICTS},
            "leak_before": sum(r.leak_before for r in rows) / count,
            "leak_after": sum(r.leak_after for r in rows) / count,
            **{
                name: sum(getattr(r, name) for r in bootstrapped) / len(bootstrapped)
                for name in DISCOUNTS
                if bootstrapped
            },
        },
    )


VERDICTS = ("clean", "rewritten", "thought_dropped", "row_dropped")
DISCOUNTS = ("discount_next", "discount_future", "discount_both")


async def correct_target(
    ctx: StageContext, target: BellmanTarget, transition: DrawnTransition
) -> CorrectedTarget:
    """Correct one target's thought, hidden and visible, and score the label that comes out."""
    backup = backup_inputs(target, transition)
    section, student = ctx.config.correction, ctx.config.roles.predict

    def measure(thought: str) -> Leak:
        return find_leaks(
            thought,
            privileged=backup.privileged,
            visible=backup.visible,
            source=SOURCE_OF_TARGET,
            ngram=section.ngram,
        )

    async def ask(text: str, hidden: bool, attempt: int) -> Rewrite:
        return await rewrite(
            ctx,
            "correct_target",
            adapter="target",
            request_key=f"{target.target_id}/{'h' if hidden else 't'}",
            attempt=attempt,
            line_limit=student.line_limit,
            hidden=hidden,
            privileged="\n".join(backup.privileged),
            thought=text,
            description=target.description,
        )

    thought = label_thought(target.thought, student.line_limit)
    reasoning = label_reasoning(student, section, target.reasoning)
    result = await correct_label(thought, reasoning, section, measure, ask)
    words = None
    if backup.next_future is not None:
        words = measure_discounting(
            target.description,
            next_observation=backup.next_observation,
            reward=backup.reward,
            future=backup.next_future,
        )
    row = CorrectedTarget(
        run=ctx.config.run,
        iteration=ctx.iteration,
        corrected_id=target.target_id,
        target_id=target.target_id,
        transition_id=target.transition_id,
        thought_before=target.thought,
        description=target.description,
        leaks=[passage for part in result.parts for passage in part.before.passages],
        attempts=sum(part.attempts for part in result.parts),
        generation=result.thought.generation,
        reasoning=result.thought.reasoning,
        reasoning_generation=result.hidden.generation if result.hidden else None,
        discount_next=words.next if words else None,
        discount_future=words.future if words else None,
        discount_both=words.both if words else None,
        **result.columns,
    )
    if row.status != "ok" or not _is_scored(ctx.config):
        return row
    return await score_label(ctx, row, backup, other_backup_inputs(target, transition))


def _is_scored(config: Config) -> bool:
    """Whether anything reads log p_B: priorities do, and so does token_kl."""
    return config.replay.alpha > 0 or config.backup.loss == "token_kl"


async def score_label(
    ctx: StageContext, row: CorrectedTarget, backup: BackupInputs, others: list[BackupInputs]
) -> CorrectedTarget:
    """Score a corrected label's description under the prompt of its backup, and of the other (a', d').

    Args:
        ctx: whose bootstrap role scores; NULL columns where its engine can't.
        row: the label.
        backup: what it was written from; the top-k log-probabilities are of this prompt.
        others: what it might have been written from.
    """
    segments = future_segments(row.thought, row.description)
    top_k = ctx.config.backup.top_k if ctx.config.backup.loss == "token_kl" else 0

    label = whole_label(segments, row.label_reasoning)
    shown = backup_prompt(ctx.prompts, backup, label=label)

    async def score(read: BackupInputs, top_k: int) -> Scores | None:
        request_key = f"{row.target_id}/s"
        messages = (shown if read is backup else backup_prompt(ctx.prompts, read, label=label)).messages
        return await ctx.roles.scores(
            "bootstrap",
            messages,
            segments,
            adapter="target",
            request_key=request_key,
            top_k=top_k,
            reasoning=row.label_reasoning,
        )

    try:
        own, *rest = await asyncio.gather(score(backup, top_k), *(score(other, 0) for other in others))
    except RequestError as error:
        return row.model_copy(update={"status": "score_failed", "error": str(error)})
    if own is None:
        return row
    update: dict[str, object] = {
        "backup_logprobs": list(own.segments[1]),
        "dropped_turns": shown.dropped.turns,
        "dropped_chars": shown.dropped.chars,
    }
    if rest:
        update["backup_draw_logprobs"] = [sum(scores.segments[1]) for scores in (own, *rest) if scores]
    if top_k:
        update["backup_top_ids"] = [list(ids) for ids in own.top_ids[1]]
        update["backup_top_logprobs"] = [list(values) for values in own.top_logprobs[1]]
    return row.model_copy(update=update)


def _inputs(resolve: Resolver) -> Inputs:
    return Inputs(
        tables={
            "bellman_targets": [resolve.here("bellman-targets")],
            "transitions": resolve.replay(),
        },
        adapters={"target": resolve.target()},
    )


def _bound(config: Config, algorithm: Algorithm) -> Bound:
    rewrites = config.correction.attempts if config.correction.enabled else 0
    requests = rewrites * config.replay.transitions * (1 + config.roles.predict.thinking)
    return Bound(
        requests, requests * config.roles.correct.max_tokens, "rewrites, where a thought leaks; and scoring"
    )


STAGE = Stage(
    name="cot-correction",
    version=4,
    pool="inference",
    reads=(BellmanTarget, Transition),
    writes=(CorrectedTarget,),
    config=(
        "environment",
        "correction",
        "backup.loss",
        "backup.top_k",
        "replay.alpha",
        "roles.predict.structured",
        "roles.predict.line_chars",
        "roles.predict.thinking",
    ),
    roles=("correct", "bootstrap"),
    templates=("correct_target", "bootstrap"),
    inputs=_inputs,
    bound=_bound,
    run=cot_correction,
    item=CorrectedTarget,
)
