"""Prioritised experience replay (Schaul et al. 2016, arXiv 1511.05952) over committed tables.

P(i) = (p_i + eps)^alpha / sum_j (p_j + eps)^alpha, drawn with replacement; weights (N P(i))^-beta divided
by their maximum over the draw. Reads `split = 'train'` only. A transition not yet scored gets the largest
priority known.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl


@dataclass(frozen=True)
class Draw:
    """A replay draw of n rows, in drawn order.

    Attributes:
        ids: transition_id of each row.
        priority: p_i.
        scored: whether p_i was measured.
        probability: P(i), over all N candidates.
        weight: importance weight, at most 1.
        kind: what the priorities measure; None when nothing is scored.
        candidates: N.
    """

    ids: list[str]
    priority: list[float]
    scored: list[bool]
    probability: list[float]
    weight: list[float]
    kind: str | None
    candidates: int


def draw_replay(
    transitions: pl.LazyFrame,
    priorities: pl.LazyFrame | None,
    *,
    count: int,
    alpha: float,
    beta: float,
    epsilon: float,
    seed: int,
) -> Draw:
    """Draw `count` training transitions with replacement.

    Args:
        transitions: table `transitions` of all iterations.
        priorities: table `priorities` of all earlier iterations, latest iteration last; None before the first.
        count: rows to draw.
        alpha: exponent on priorities; 0 is uniform.
        beta: exponent of the importance weights.
        epsilon: added to every priority.
        seed: of the draw's own random stream.

    Raises:
        ValueError: there is no training transition.
    """
    usable = (pl.col("split") == "train") & (pl.col("status") == "ok")
    candidates = transitions.filter(usable).select("transition_id", "iteration", "step").collect()
    if candidates.is_empty():
        raise ValueError("replay is empty: no transition with split 'train' and status 'ok' is committed")
    known = latest_priorities(priorities) if priorities is not None else None
    kind: str | None = None
    p = np.full(candidates.height, np.nan)
    if known is not None and not known.is_empty():
        kind = known["priority_kind"][0]
        p = candidates.join(known, on="transition_id", how="left", maintain_order="left")[
            "priority"
        ].to_numpy()
    measured = ~np.isnan(p)
    p = np.where(measured, p, p[measured].max() if measured.any() else 1.0)
    probability = priority_probabilities(p, alpha=alpha, epsilon=epsilon)
    rows = np.random.default_rng(seed).choice(candidates.height, size=count, replace=True, p=probability)
    drawn = probability[rows]
    return Draw(
        ids=candidates["transition_id"].gather(rows).to_list(),
        priority=p[rows].tolist(),
        scored=measured[rows].tolist(),
        probability=drawn.tolist(),
        weight=importance_weights(drawn, candidates.height, beta=beta).tolist(),
        kind=kind,
        candidates=candidates.height,
    )


def latest_priorities(priorities: pl.LazyFrame) -> pl.DataFrame:
    """The newest score of each transition: columns transition_id, priority, priority_kind.

    Scores of another kind than the newest iteration's are left out: a bound on the KL and a negative
    log-likelihood are not comparable, so those rows count as not yet scored.
    """
    scored = priorities.filter(pl.col("status") == "ok").select(
        "transition_id", "iteration", "priority", "priority_kind"
    )
    newest = scored.filter(pl.col("iteration") == pl.col("iteration").max()).select("priority_kind").first()
    return (
        scored.join(newest, on="priority_kind", how="semi")
        .group_by("transition_id")
        .agg(pl.col("priority", "priority_kind").sort_by("iteration").last())
        .collect()
    )


def priority_probabilities(p: np.ndarray, *, alpha: float, epsilon: float) -> np.ndarray:
    """P(i) for priorities p of shape (N,); sums to 1."""
    scaled = np.power(p + epsilon, alpha)
    return np.asarray(scaled / scaled.sum())


def importance_weights(probability: np.ndarray, candidates: int, *, beta: float) -> np.ndarray:
    """(N P(i))^-beta of the drawn rows, shape (n,), divided by their maximum."""
    weights = np.power(candidates * probability, -beta)
    return np.asarray(weights / weights.max())
