"""What replay draws, and what it has left out."""

from pydantic import Field

from storage.sql.measures.base import Measured, Views


class ReplayAgeRow(Measured):
    """Draws of one iteration by the age of what was drawn."""

    age: int | None = Field(description="iterations since the transition's own; NULL: it is of another run")
    draws: int = Field(description="rows of replay_samples")
    share: float = Field(description="of the iteration's draws")


class ReplayUseRow(Measured):
    """How often the training transitions that one iteration collected have been drawn by their run so far."""

    transitions: int = Field(description="training transitions with status 'ok'")
    draws: int = Field(description="draws of them")
    draws_per_transition: float = Field(description="draws / transitions")
    backed_up: int = Field(description="transitions with a backup of status 'ok'")
    never_backed_up_share: float = Field(description="share without one")


REPLAY: Views = {
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
}  # fmt: skip
