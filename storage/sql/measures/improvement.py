"""How good critic and refiner are, and what leaks in thoughts."""

from pydantic import Field

from storage.sql.measures.base import Measured, Views


class CriticFidelityRow(Measured):
    """How well the evaluator's verdicts of one iteration tell success, over critiques of the very action that was
    played at their transition. The outcome is that of the episode that went on under the policy of its time."""

    verdicts: int = Field(description="critiques whose action is the transition's own, with a verdict")
    successes: int = Field(description="those whose episode succeeded")
    auroc: float | None = Field(
        description="chance that a success has a higher verdict than a failure, ties half; NULL without one of each"
    )
    mean_verdict: float = Field(description="mean of p(yes); a written verdict counts as 0 or 1")
    success_rate: float = Field(description="successes / verdicts; calibrated: equal to mean_verdict")
    brier: float = Field(description="mean of (p(yes) - success)^2; 0 is best")


class RefinementEffectRow(Measured):
    """What refinement did in one iteration."""

    proposals: int = Field(description="rows of refinements")
    valid: int = Field(description="those that the environment accepts")
    distilled: int = Field(description="those that the policy is trained on")
    changed: int = Field(description="distilled ones that differ from the action to improve")
    verdict_before: float | None = Field(
        description="mean p(yes) of the actions to improve behind the distilled ones that were critiqued again"
    )
    verdict_after: float | None = Field(description="mean p(yes) of these distilled actions")


class LeakageRow(Measured):
    """Leaks in the thoughts of one iteration's labels, before and after correction."""

    source_table: str = Field(description="corrected_targets or refinements")
    thoughts: int = Field(description="thoughts that were measured")
    leaking: int = Field(description="those with a leak")
    leak_before: float | None = Field(description="mean share of words inside leaks, before correction")
    leak_after: float | None = Field(description="the same for the thoughts kept")
    rewritten: int = Field(description="thoughts that a rewrite replaced")
    thought_dropped: int = Field(description="labels without their thought, because no rewrite passed")
    row_dropped: int = Field(description="labels dropped, because no rewrite passed")


IMPROVEMENT: Views = {
    "critic_fidelity": (
        CriticFidelityRow,
        """
        with judged as (
            select c.run, c.iteration, coalesce(c.yes_probability, c.optimal::int) as p, e.success
            from critiques c
            join transitions t on t.transition_id = c.transition_id and t.action = c.action
            join episodes e on e.episode_id = t.episode_id
            where c.status = 'ok' and c.optimal is not null and e.status = 'ok'
        ), ranked as (
            select *, rank() over (partition by run, iteration order by p)
                   + (count(*) over (partition by run, iteration, p) - 1) / 2 as rank
            from judged
        )
        select run, iteration, count(*) as verdicts, count_if(success) as successes,
               (sum(rank) filter (success) - count_if(success) * (count_if(success) + 1) / 2)
                   / nullif(count_if(success) * count_if(not success), 0) as auroc,
               avg(p) as mean_verdict, avg(success::int) as success_rate,
               avg((p - success::int) * (p - success::int)) as brier
        from ranked group by run, iteration""",
    ),
    "refinement_effect": (
        RefinementEffectRow,
        """
        with judged as (
            select *, coalesce(yes_probability, optimal::int) as p from critiques where status = 'ok'
        ), effect as (
            select r.*, before.p as p_before, after.p as p_after
            from refinements r
            left join judged before on before.sample_id = r.sample_id and before.round = 0 and r.distil
            left join judged after on after.sample_id = r.sample_id and after.round > 0
                 and after.action_text = r.action_text and r.distil
            qualify row_number() over (partition by r.refinement_id order by after.round desc, before.p desc) = 1
        )
        select run, iteration, count(*) as proposals, count_if(valid) as valid, count_if(distil) as distilled,
               count_if(distil and changed) as changed,
               avg(p_before) filter (p_after is not null) as verdict_before, avg(p_after) as verdict_after
        from effect group by run, iteration""",
    ),
    "leakage": (
        LeakageRow,
        " union all ".join(
            f"""
        select run, iteration, '{table}' as source_table, count(leak_before) as thoughts,
               count_if(leak_before > 0) as leaking, avg(leak_before) as leak_before, avg(leak_after) as leak_after,
               count_if(verdict = 'rewritten') as rewritten, count_if(verdict = 'thought_dropped') as thought_dropped,
               count_if(verdict = 'row_dropped') as row_dropped
        from {table} group by run, iteration having count(leak_before) > 0"""
            for table in ("corrected_targets", "refinements")
        ),
    ),
}  # fmt: skip
