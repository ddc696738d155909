"""Success on the eval tasks, with what it had cost by then."""

from pydantic import Field

from storage.sql.measures.base import Measured, Views


class LearningCurveRow(Measured):
    """One evaluation on the eval tasks, with what the policy had cost by then."""

    policy_version: str = Field(description="policy that played; -> adapters.version")
    success_rate: float | None = Field(description="successes / episodes")
    success_low: float | None = Field(description="95% Wilson interval, lower end")
    success_high: float | None = Field(description="95% Wilson interval, upper end")
    baseline_success_rate: float | None = Field(description="of a player without a model; NULL: not measured")
    environment_steps: int = Field(description="training transitions of the run up to this iteration")
    tokens: int = Field(description="tokens of all its stages up to this iteration")
    seconds: float = Field(description="seconds of all its stages up to this iteration")


class ComparisonRow(Measured):
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


LEARNING: Views = {
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
