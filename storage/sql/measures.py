"""Views that measure: what was written and what it cost, how replay is used, how good critic and refiner are.

Each is a model of its columns and a query over the tables and the views before it.
"""

from pydantic import BaseModel, Field


class _Measured(BaseModel):
    run: str = Field(description="run")
    iteration: int = Field(description="iteration")


class GenerationRow(_Measured):
    """One generated text. Of several rewrites of one thought only the last is stored."""

    stage: str = Field(description="stage that asked for it")
    role: str = Field(
        description="policy, predict, bootstrap, correct, evaluate, refine or environment_model"
    )
    source_table: str = Field(description="table that holds the text")
    source_id: str = Field(description="id in that table (of corrected_targets: corrected_id)")
    engine: str = Field(description="engine name in the configuration")
    model_version: str = Field(description="model or adapter version that wrote it; -> adapters.version")
    prompt_tokens: int = Field(description="tokens read")
    completion_tokens: int = Field(description="tokens written")
    finish_reason: str = Field(description="stop, length (cut by max_tokens) or error")
    dropped_chars: int | None = Field(description="characters left out of the prompt")


class StageSummaryRow(_Measured):
    """One current stage, with its rates."""

    stage: str = Field(description="stage")
    rows_in: int = Field(description="items it set out to process")
    rows_out: int = Field(description="rows of all its tables")
    rejected_share: float | None = Field(
        description="share of rows whose status is not 'ok'; NULL without rows"
    )
    texts: int = Field(description="texts it generated that are stored")
    cut_share: float | None = Field(description="share of them that max_tokens cut; NULL without texts")
    tokens: int = Field(description="tokens generated, scored or trained on")
    seconds: float = Field(description="time it took to compute")
    tokens_per_second: float | None = Field(description="tokens / seconds")


class CriticFidelityRow(_Measured):
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


class RefinementEffectRow(_Measured):
    """What refinement did in one iteration."""

    proposals: int = Field(description="rows of refinements")
    valid: int = Field(description="those that the environment accepts")
    distilled: int = Field(description="those that the policy is trained on")
    changed: int = Field(description="distilled ones that differ from the action to improve")
    verdict_before: float | None = Field(
        description="mean p(yes) of the actions to improve behind the distilled ones that were critiqued again"
    )
    verdict_after: float | None = Field(description="mean p(yes) of these distilled actions")


class LeakageRow(_Measured):
    """Leaks in the thoughts of one iteration's labels, before and after correction."""

    source_table: str = Field(description="corrected_targets or refinements")
    thoughts: int = Field(description="thoughts that were measured")
    leaking: int = Field(description="those with a leak")
    leak_before: float | None = Field(description="mean share of words inside leaks, before correction")
    leak_after: float | None = Field(description="the same for the thoughts kept")
    rewritten: int = Field(description="thoughts that a rewrite replaced")
    thought_dropped: int = Field(description="labels without their thought, because no rewrite passed")
    row_dropped: int = Field(description="labels dropped, because no rewrite passed")


class ReplayAgeRow(_Measured):
    """Draws of one iteration by the age of what was drawn."""

    age: int | None = Field(description="iterations since the transition's own; NULL: it is of another run")
    draws: int = Field(description="rows of replay_samples")
    share: float = Field(description="of the iteration's draws")


class ReplayUseRow(_Measured):
    """How often the training transitions that one iteration collected have been drawn by their run so far."""

    transitions: int = Field(description="training transitions with status 'ok'")
    draws: int = Field(description="draws of them")
    draws_per_transition: float = Field(description="draws / transitions")
    backed_up: int = Field(description="transitions with a backup of status 'ok'")
    never_backed_up_share: float = Field(description="share without one")


class TokenCostRow(_Measured):
    """Tokens of one stage and role."""

    stage: str = Field(description="stage")
    role: str = Field(description="as in generations; training: rows of optimizer steps")
    texts: int = Field(description="generated texts; of training, optimizer steps")
    prompt_tokens: int = Field(description="tokens read; of training, tokens without loss")
    completion_tokens: int = Field(description="tokens written; of training, tokens with loss")


class LearningCurveRow(_Measured):
    """One evaluation on the eval tasks, with what the policy had cost by then."""

    policy_version: str = Field(description="policy that played; -> adapters.version")
    success_rate: float | None = Field(description="successes / episodes")
    success_low: float | None = Field(description="95% Wilson interval, lower end")
    success_high: float | None = Field(description="95% Wilson interval, upper end")
    baseline_success_rate: float | None = Field(description="of a player without a model; NULL: not measured")
    environment_steps: int = Field(description="training transitions of the run up to this iteration")
    tokens: int = Field(description="tokens of all its stages up to this iteration")
    seconds: float = Field(description="seconds of all its stages up to this iteration")


class ComparisonRow(_Measured):
    """One evaluation on the eval tasks, with what it had cost to make the policy, for algorithms to be compared by.
    What evaluations cost is left out. Of runs whose demonstrations or logs were given, those cost nothing here."""

    policy_version: str = Field(description="policy that played; -> adapters.version")
    success_rate: float | None = Field(description="successes / episodes")
    success_low: float | None = Field(description="95% Wilson interval, lower end")
    success_high: float | None = Field(description="95% Wilson interval, upper end")
    environment_steps: int = Field(
        description="training transitions of the run up to this iteration, and simulated_steps"
    )
    simulated_steps: int = Field(
        description="steps played to see a future (algorithm self_distillation), up to this iteration; those that lead "
        "back to the state are not counted"
    )  # fmt: skip
    generated_tokens: int = Field(description="tokens written up to this iteration")
    trained_tokens: int = Field(description="tokens of the rows of all optimizer steps up to this iteration")
    seconds: float = Field(description="seconds of the stages up to this iteration")


_PLAYED = "case split when 'train' then 'rollout' else 'evaluation' end"
_CRITIQUED = "case round when 0 then 'critique' else 'refinement' end"
_FRESH = "action_source = 'fresh'"

_SOURCES = (
    ("transitions", _PLAYED, "policy", "transition_id", "generation", "true"),
    ("bellman_targets", "'bellman-targets'", "policy", "target_id", "next_action_generation", "true"),
    ("bellman_targets", "'bellman-targets'", "predict", "target_id", "next_future_generation", "true"),
    ("bellman_targets", "'bellman-targets'", "bootstrap", "target_id", "generation", "true"),
    ("corrected_targets", "'cot-correction'", "correct", "corrected_id", "generation", "true"),
    ("corrected_targets", "'cot-correction'", "correct", "corrected_id", "reasoning_generation", "true"),
    ("sampled_actions", "'action-samples'", "policy", "action_id", "generation", "true"),
    ("critiques", _CRITIQUED, "policy", "critique_id", "action_generation", _FRESH),
    ("critiques", _CRITIQUED, "evaluate", "critique_id", "generation", "true"),
    ("refinements", "'refinement'", "refine", "refinement_id", "generation", "kind = 'refined'"),
    ("refinements", "'refinement'", "correct", "refinement_id", "correction_generation", "true"),
    ("refinements", "'refinement'", "correct", "refinement_id", "reasoning_generation", "true"),
)  # fmt: skip
"""(table, stage, role, id, column, condition) of the texts that a row's own Generation describes."""


def _generations() -> str:
    parts = [
        f"select run, iteration, {stage} as stage, '{role}' as role, '{table}' as source_table, {key} as source_id, "
        f"{column} as g from {table} where {column} is not null and {condition}"
        for table, stage, role, key, column, condition in _SOURCES
    ]
    parts.append(
        "select f.run, f.iteration, case c.round when 0 then 'critique' else 'refinement' end, 'predict', 'futures', "
        "f.future_id, f.generation from futures f left join critiques c using (critique_id) "
        "where f.generation is not null"
    )
    # A choice by probabilities asks nobody: its row has the provenance of the action that it picks.
    parts.append(
        "select r.run, r.iteration, 'refinement', 'refine', 'refinements', r.refinement_id, r.generation "
        "from refinements r join critiques c using (critique_id) "
        "where r.kind = 'chosen' and r.generation is not null and c.yes_probability is null"
    )
    parts.append(
        f"select run, iteration, {_PLAYED}, 'environment_model', 'transitions', transition_id, "
        "unnest(speaker_generations) from transitions"
    )
    told = "engine, g.model_version, g.prompt_tokens, g.completion_tokens, g.finish_reason, g.dropped_chars"
    own = f"select * exclude (g), g.{told} from ({' union all '.join(parts)})"
    # Of further draws a row holds only what differs from the first.
    drawn = " union all ".join(
        "select run, iteration, 'bellman-targets' as stage, '"
        + role
        + "' as role, 'bellman_targets' as source_table, "
        f"target_id as source_id, first.engine, first.model_version, d.prompt_tokens, d.completion_tokens, "
        "d.finish_reason, null as dropped_chars "
        f"from (select run, iteration, target_id, next_{text}_generation as first, "
        f"unnest(other_draws).next_{text}_drawn as d from bellman_targets) where d is not null and first is not null"
        for role, text in (("policy", "action"), ("predict", "future"))
    )
    return f"{own} union all by name {drawn}"


MEASURES: dict[str, tuple[type[BaseModel], str]] = {
    "generations": (GenerationRow, _generations()),
    "stage_summary": (
        StageSummaryRow,
        """
        select s.run, s.iteration, s.stage, s.rows_in, s.rows_out,
               s.rejected / nullif(s.rows_out, 0) as rejected_share,
               count(g.stage) as texts, avg((g.finish_reason = 'length')::int) as cut_share,
               s.tokens, s.seconds, s.tokens / nullif(s.seconds, 0) as tokens_per_second
        from stages s left join generations g
             on g.run = s.run and g.iteration = s.iteration and g.stage = s.stage
        where s.state <> 'superseded' group by all""",
    ),
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
    "replay_age": (
        ReplayAgeRow,
        """
        with aged as (
            select s.run, s.iteration, case when t.run = s.run then s.iteration - t.iteration end as age,
                   count(*) as draws
            from replay_samples s join transitions t using (transition_id) group by all
        )
        select *, draws / sum(draws) over (partition by run, iteration) as share from aged""",
    ),
    "replay_use": (
        ReplayUseRow,
        """
        with drawn as (
            select run, transition_id, count(*) as draws from replay_samples group by all
        ), backed_up as (
            select distinct run, transition_id from bellman_targets where status = 'ok'
        )
        select t.run, t.iteration, count(*) as transitions, coalesce(sum(d.draws), 0) as draws,
               coalesce(sum(d.draws), 0) / count(*) as draws_per_transition, count(b.transition_id) as backed_up,
               1 - count(b.transition_id) / count(*) as never_backed_up_share
        from transitions t
        left join drawn d on d.run = t.run and d.transition_id = t.transition_id
        left join backed_up b on b.run = t.run and b.transition_id = t.transition_id
        where t.split = 'train' and t.status = 'ok' group by t.run, t.iteration""",
    ),
    "token_costs": (
        TokenCostRow,
        """
        select run, iteration, stage, role, count(*) as texts, sum(prompt_tokens) as prompt_tokens,
               sum(completion_tokens) as completion_tokens
        from generations group by all
        union all
        select run, iteration, stage, 'training', count(*), sum(tokens - label_tokens), sum(label_tokens)
        from training_steps group by all""",
    ),
    "learning_curve": (
        LearningCurveRow,
        """
        with steps as (
            select run, iteration, count(*) as steps from transitions where split = 'train' group by all
        ), costs as (
            select run, iteration, sum(tokens) as tokens, sum(seconds) as seconds
            from stages where state <> 'superseded' group by all
        )
        select e.run, e.iteration, e.policy_version, e.success_rate, e.success_low, e.success_high,
               e.baseline_success_rate,
               (select coalesce(sum(steps), 0) from steps s where s.run = e.run and s.iteration <= e.iteration)
                   as environment_steps,
               (select coalesce(sum(tokens), 0) from costs c where c.run = e.run and c.iteration <= e.iteration)
                   as tokens,
               (select coalesce(sum(seconds), 0) from costs c where c.run = e.run and c.iteration <= e.iteration)
                   as seconds
        from evaluations e where e.split = 'eval'""",
    ),
    "comparison": (
        ComparisonRow,
        r"""
        with spent as (
            select run, iteration, 0 as collected, 0 as simulated, tokens, 0 as trained, seconds
            from stages where state <> 'superseded' and stage <> 'evaluation'
            union all
            select run, iteration, 0, 0, 0, tokens, 0 from training_steps
            union all
            select run, iteration, 1, 0, 0, 0, 0 from transitions where split = 'train'
            union all
            select run, iteration, 0, len(regexp_extract_all(description, '(?:^| )Environment: ')), 0, 0, 0
            from futures where source = 'rollout'
        ), costs as (
            select run, iteration, sum(collected) as collected, sum(simulated) as simulated, sum(tokens) as tokens,
                   sum(trained) as trained, sum(seconds) as seconds
            from spent group by all
        )
        select e.run, e.iteration, e.policy_version, e.success_rate, e.success_low, e.success_high,
               coalesce(sum(collected + simulated), 0) as environment_steps,
               coalesce(sum(simulated), 0) as simulated_steps,
               coalesce(sum(tokens - trained), 0) as generated_tokens, coalesce(sum(trained), 0) as trained_tokens,
               coalesce(sum(seconds), 0) as seconds
        from evaluations e left join costs c on c.run = e.run and c.iteration <= e.iteration
        where e.split = 'eval' group by all""",
    ),
}  # fmt: skip
"""View -> the model of its rows, and its query; the model gives the columns their order and types."""
