"""Stage cot-correction: rewrite each target's reasoning so that it asserts nothing the predict prompt
won't show.

The description is copied, never regenerated: stating the outcome is its purpose. The stage also scores the
corrected label under the backup prompt (log p_B of the description's tokens), which the priorities need.
"""

from schemas.rows import BellmanTarget, CorrectedTarget
from tasks.bellman_targets import backup_of
from tasks.context import StageContext
from tasks.correction import correct
from tasks.engines.base import EngineError
from tasks.formats import future_segments
from tasks.leaks import SOURCE_OF_TARGET, Leak, find_leaks
from tasks.replayed import Replayed, load_replayed
from tasks.roles import backup_messages, rewrite
from tasks.stage import Inputs, Output, Resolver, Stage, StageFailed


async def cot_correction(ctx: StageContext, inputs: Inputs) -> Output:
    """Correct every usable target.

    Raises:
        StageFailed: there is none.
    """
    targets: list[BellmanTarget] = [t for t in inputs.rows("bellman_targets") if t.status == "ok"]
    if not targets:
        raise StageFailed(
            'no Bellman target is usable; look at: nlac sql "select status, error from bellman_targets"'
        )
    transitions = load_replayed(inputs, (t.transition_id for t in targets))

    async def work(target: BellmanTarget) -> CorrectedTarget:
        return await correct_target(ctx, target, transitions[target.transition_id])

    rows = await ctx.map(targets, work, "targets")
    count = len(rows)
    return Output(
        tables={"corrected_targets": list(rows)},
        rows_in=count,
        metrics={
            **{f"{v}_share": sum(r.verdict == v for r in rows) / count for v in VERDICTS},
            "leak_before": sum(r.leak_before for r in rows) / count,
            "leak_after": sum(r.leak_after for r in rows) / count,
        },
    )


VERDICTS = ("clean", "rewritten", "thought_dropped", "row_dropped")


async def correct_target(ctx: StageContext, target: BellmanTarget, transition: Replayed) -> CorrectedTarget:
    """Correct one target's thought and score the label that comes out."""
    backup = backup_of(target, transition)
    section = ctx.config.correction

    def measure(thought: str) -> Leak:
        return find_leaks(
            thought,
            privileged=backup.privileged,
            visible=backup.visible,
            source=SOURCE_OF_TARGET,
            ngram=section.ngram,
        )

    result = await correct(
        target.thought,
        section,
        measure,
        lambda attempt: rewrite(
            ctx,
            "correct_target",
            use="target",
            item=f"{target.target_id}/t",
            attempt=attempt,
            privileged="\n".join(backup.privileged),
            thought=target.thought,
            description=target.description,
        ),
    )
    dropped = result.verdict == "row_dropped"
    row = CorrectedTarget(
        run=ctx.config.run,
        iteration=ctx.iteration,
        status="row_dropped" if dropped else "ok",
        error="no rewrite of the thought passed the leak check" if dropped else None,
        corrected_id=target.target_id,
        target_id=target.target_id,
        transition_id=target.transition_id,
        verdict=result.verdict,
        thought_before=target.thought,
        thought=result.thought,
        description=target.description,
        leak_before=result.before.share,
        leak_after=result.after,
        leaks=list(result.before.passages),
        attempts=result.attempts,
        generation=result.generation,
    )
    if dropped:
        return row
    segments = future_segments(row.thought, row.description)
    try:
        scored = await ctx.score(
            "bootstrap", backup_messages(ctx, backup), segments, use="target", item=f"{target.target_id}/s"
        )
    except EngineError as error:
        return row.model_copy(update={"status": "score_failed", "error": str(error)})
    return row.model_copy(update={"backup_logprobs": list(scored[1]) if scored else None})


def _inputs(resolve: Resolver) -> Inputs:
    return Inputs(
        tables={
            "bellman_targets": [resolve.here("bellman-targets")],
            "transitions": resolve.upto("rollout", resolve.iteration),
        },
        adapters={"target": resolve.target()},
    )


STAGE = Stage(
    name="cot-correction",
    version=1,
    pool="inference",
    tables=(CorrectedTarget,),
    config=("environment", "correction"),
    roles=("correct", "bootstrap"),
    templates=("correct_target", "bootstrap"),
    inputs=_inputs,
    run=cot_correction,
)
