"""Stopping at the validation peak: every run forgets general instruction following in the end (paper, appendix B.6).

The eval split is only reported, never chosen by."""

from collections.abc import Sequence

from schemas.config import Config
from schemas.rows.evaluated import LEAST_COVERAGE, coverage
from storage.store import Store


def best_evaluation(rates: Sequence[float | None]) -> int:
    """Number of the best evaluation, the first of equal ones. One without a rate is worse than any other.

    Raises:
        ValueError: there is none.
    """
    return max(range(len(rates)), key=lambda n: (-1.0 if rates[n] is None else rates[n], -n))


def should_stop(rates: Sequence[float | None], patience: int | None) -> bool:
    """Whether `patience` evaluations have passed since the best one.

    Args:
        rates: success rates in order; None where too few episodes were played to an end (LEAST_COVERAGE).
        patience: None never stops.
    """
    return bool(rates) and patience is not None and len(rates) - 1 - best_evaluation(rates) >= patience


def stop_reason(store: Store, config: Config, before: int) -> str | None:
    """Why a run should end before an iteration begins; None: it should go on.

    Args:
        store: the artifact store.
        config: names the run and `evaluation.patience`.
        before: the iteration that would begin; all earlier ones with validation figures count.

    Raises:
        StoreError: `current.json` or a manifest is broken.
    """
    if config.evaluation.patience is None:
        return None
    rates: dict[int, float | None] = {}
    for iteration in range(before):
        committed = store.committed(config.run, "evaluation", iteration)
        if committed is not None:
            validated = committed.scan("evaluations").filter(split="validation").collect()
            for row in validated.iter_rows(named=True):
                covered = coverage(row["episodes"], row["failed_episodes"]) or 0.0
                rates[row["iteration"]] = row["success_rate"] if covered >= LEAST_COVERAGE else None
    if not should_stop(list(rates.values()), config.evaluation.patience):
        return None
    best = list(rates)[best_evaluation(list(rates.values()))]
    return (
        f"stopped before iteration {before}: evaluation.patience {config.evaluation.patience}, and no evaluation since "
        f"iteration {best} had a better success rate on the validation tasks than its {rates[best]}; iteration {best} "
        "holds the best policy"
    )
