"""Alarms: what in an iteration a person should look at, and where. docs/monitoring.md says what each may mean."""

from collections.abc import Iterator
from dataclasses import dataclass

from tasks.export.measured import Measured

MALFORMED_SHARE, UNCHANGED_SHARE, NEVER_BACKED_UP_SHARE = 0.05, 0.5, 0.5
COMMONER, LESS_ENTROPY = 2.0, 0.5
LEAST_ROWS = 2  # of fewer rows nothing is "all" or "most"


@dataclass(frozen=True)
class Alarm:
    """Something that a person should look at.

    Attributes:
        name: what is wrong, in a few words.
        said: the figures behind it.
        look: the command that shows more.
    """

    name: str
    said: str
    look: str


def alarms(measured: Measured) -> Iterator[Alarm]:
    """Every alarm that this iteration raises."""
    for alarm in (
        _equal_verdicts, _unchanged, _too_malformed, _commonest_action, _entropy, _never_backed_up, _below_baseline,
    ):  # fmt: skip
        yield from alarm(measured)


def _equal_verdicts(measured: Measured) -> Iterator[Alarm]:
    verdicts, kinds, says, low, high = measured.row(
        "select count(*), count(distinct optimal), any_value(optimal), min(yes_probability), max(yes_probability) "
        "from critiques where run = $1 and iteration = $2 and round = 0 and status = 'ok' and optimal is not null"
    )
    if verdicts >= LEAST_ROWS and kinds == 1:
        scored = "" if low is None else f"; p(yes) from {low:.3f} to {high:.3f}"
        yield Alarm(
            "all verdicts are equal",
            f"{verdicts} actions are called {'optimal' if says else 'not optimal'}{scored}",
            "nlac report and critic_fidelity say whether verdicts tell success: "
            'nlac sql "select * from critic_fidelity"',
        )


def _unchanged(measured: Measured) -> Iterator[Alarm]:
    refined, same = measured.row(
        "select count(*), count_if(not changed) from refinements "
        "where run = $1 and iteration = $2 and kind = 'refined' and valid"
    )
    if refined >= LEAST_ROWS and same > UNCHANGED_SHARE * refined:
        yield Alarm(
            "most refined actions are unchanged",
            f"{same} of {refined} valid refinements are the judged action",
            'nlac sql "select distil_reason, count(*) from refinements group by all"',
        )


def _too_malformed(measured: Measured) -> Iterator[Alarm]:
    found = measured.malformed()
    if found and found["malformed"] > MALFORMED_SHARE * found["texts"]:
        share = found["malformed"] / found["texts"]
        yield Alarm(
            f"malformed texts above {MALFORMED_SHARE:.0%}",
            f"{found['malformed']} of {found['texts']} texts of backup, successor, evaluator and refiner ({share:.0%}) "
            "lack their format or were cut",
            "nlac show --failed; texts that were cut need more max_tokens: "
            'nlac sql "select stage, cut_share from stage_summary"',
        )


_FIRST_SHARES = """
select action, n / sum(n) over () as share from (
    select action, count(*) as n from transitions
    where run = $1 and iteration = {iteration} and split = 'train' and step = 0 group by action)
"""


def _commonest_action(measured: Measured) -> Iterator[Alarm]:
    found = measured.rows(
        f"select now.action, now.share, coalesce(once.share, 0) from ({_FIRST_SHARES.format(iteration='$2')}) now "
        f"left join ({_FIRST_SHARES.format(iteration='0')}) once using (action) "
        f"where exists (from ({_FIRST_SHARES.format(iteration='0')})) order by now.share desc, now.action limit 1"
    )
    for action, share, once in found:
        if share > COMMONER * once:
            yield Alarm(
                "the commonest first action is more than twice as common as in iteration 0",
                f"{action!r} begins {share:.0%} of the training episodes, {once:.0%} in iteration 0",
                "nlac show --changed says which actions refinement puts in place; "
                "improvement.max_rows_per_action caps its favourites",
            )


def _entropy(measured: Measured) -> Iterator[Alarm]:
    found = dict(
        measured.rows(
            """
        select iteration, sum(share * ln(1 / share)) from (
            select iteration, n / sum(n) over (partition by iteration) as share from (
                select iteration, action, count(*) as n from transitions
                where run = $1 and iteration in (0, $2) and split = 'train' group by all))
        group by iteration"""
        )
    )
    here = max(found, default=0)
    if len(found) > 1 and found[here] < LESS_ENTROPY * found[0]:
        yield Alarm(
            "the entropy of actions is below half of iteration 0's",
            f"{found[here]:.3f} nats, {found[0]:.3f} in iteration 0",
            "docs/queries.md has entropy and commonest action by iteration; anchor.kl and roles.policy.temperature "
            "keep variety",
        )


def _never_backed_up(measured: Measured) -> Iterator[Alarm]:
    known, never = measured.row(
        """
        with backed_up as (
            select distinct transition_id from bellman_targets where run = $1 and iteration <= $2 and status = 'ok'
        )
        select count(*), count_if(b.transition_id is null)
        from transitions t left join backed_up b using (transition_id)
        where t.run = $1 and t.iteration <= $2 and t.split = 'train' and t.status = 'ok'
          and exists (from bellman_targets where run = $1 and iteration <= $2)"""
    )
    if known and never > NEVER_BACKED_UP_SHARE * known:
        yield Alarm(
            f"transitions never backed up above {NEVER_BACKED_UP_SHARE:.0%}",
            f"{never} of {known} training transitions so far have no usable Bellman target",
            'nlac sql "select * from replay_use"; raise replay.transitions, or lower rollout.episodes',
        )


def _below_baseline(measured: Measured) -> Iterator[Alarm]:
    (success, _), baseline = measured.success(), measured.baseline()
    if success is not None and baseline is not None and success.rate < baseline[1]:
        doing = {"nothing": "doing nothing", "random": "acting at random"}.get(baseline[0], baseline[0])
        yield Alarm(
            f"evaluation is below {doing}",
            f"success {success.rate:.3f}, {doing} {baseline[1]:.3f}",
            'nlac sql "select * from learning_curve"; nlac show --invalid says whether actions are even valid',
        )
