"""Prioritised experience replay (Schaul et al. 2016, arXiv 1511.05952) over committed tables.

P(i) = (p_i + eps)^alpha / sum_j (p_j + eps)^alpha, drawn with replacement. The weights are (N P(i))^-beta, divided by
their maximum over the draw. Only rows with `split = 'train'` are read. A transition not yet drawn gets the largest
known priority. A drawn one has a priority in any case: one whose target could not be scored has one that decays.

Per transition, 8 bytes of its id's hash and some floats are in memory, so that ten million fit. The ids of the drawn
rows are read afterwards. Two of n ids share a hash, and so a priority, with probability n^2 / 2^65 (3e-6 for ten
million).
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import get_args

import numpy as np
import polars as pl

from schemas.rows import PriorityKind
from storage.latest_value_index import LatestValueIndex


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


ID_HASH = pl.col("transition_id").hash().alias("key")
USABLE = ((pl.col("split") == "train") & (pl.col("status") == "ok")).alias("usable")
KINDS = pl.Enum(get_args(PriorityKind))


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
    """Draw `count` training transitions with replacement, in time linear in the rows of both tables.

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
    with ThreadPoolExecutor(1) as aside:
        scores = aside.submit(latest_priorities, priorities) if priorities is not None else None
        read = transitions.select(ID_HASH, USABLE).collect(engine="streaming")
        keys, usable = _array(read["key"].filter(read["usable"])), read["usable"]
        del read
        kind, known = (
            scores.result() if scores is not None else (None, LatestValueIndex(keys[:0], np.empty(0)))
        )
    if not len(keys):
        raise ValueError("replay is empty: no transition with split 'train' and status 'ok' is committed")
    candidates, p = len(keys), known.of(keys)
    unknown, largest = np.isnan(p), np.fmax.reduce(p)  # NaN only if there is nothing else
    np.copyto(p, 1.0 if np.isnan(largest) else largest, where=unknown)
    probability = priority_probabilities(p, alpha=alpha, epsilon=epsilon)
    # Into the memory of the keys, which are not needed any more: fresh memory takes longer than the sum.
    rows = _choice(probability, keys.view(np.float64), count, seed)
    del keys, known
    drawn = probability[rows]
    return Draw(
        ids=_ids(transitions, usable.arg_true().gather(rows)),
        priority=p[rows].tolist(),
        scored=(~unknown[rows]).tolist(),
        probability=drawn.tolist(),
        weight=importance_weights(drawn, candidates, beta=beta).tolist(),
        kind=kind,
        candidates=candidates,
    )


def replay_use(transitions: pl.LazyFrame, drawn: pl.LazyFrame) -> tuple[float, float]:
    """How often a training transition has been drawn on average, and the share that never was.

    Args:
        transitions: as in `draw_replay`, at least one of them drawn.
        drawn: `transition_id` of every draw so far; those of other transitions don't count.
    """
    times = drawn.select(ID_HASH).group_by("key").len("times")
    known = transitions.filter(USABLE).select(ID_HASH).join(times, on="key", how="left")
    use = known.select(pl.col("times").fill_null(0).mean(), pl.col("times").is_null().mean().alias("never"))
    [(ratio, never)] = use.collect(engine="streaming").rows()
    return ratio, never


def _choice(probability: np.ndarray, memory: np.ndarray, count: int, seed: int) -> np.ndarray:
    """What `np.random.default_rng(seed).choice` draws with these probabilities, computed in `memory`."""
    cumulative = np.cumsum(probability, out=memory)
    cumulative /= cumulative[-1]
    return cumulative.searchsorted(np.random.default_rng(seed).random(count), side="right")


def _ids(transitions: pl.LazyFrame, rows: pl.Series) -> list[str]:
    """The ids of these rows of the table, in their order."""
    found = (
        transitions.select("transition_id")
        .with_row_index("row")
        .filter(pl.col("row").is_in(rows.unique().implode()))
        .select("row", pl.concat_str("transition_id", pl.lit("")))  # a copy; a view would hold its row group
        .collect(engine="streaming")
    )
    wanted = pl.DataFrame({"row": rows})
    return wanted.join(found, on="row", how="left", maintain_order="left")["transition_id"].to_list()


def _array(values: pl.Series) -> np.ndarray:
    """A copy in numpy's memory, which comes in large pages; polars' small pages cost more than the copy."""
    return np.concatenate([chunk.to_numpy() for chunk in values.get_chunks()])


def latest_priorities(priorities: pl.LazyFrame) -> tuple[str | None, LatestValueIndex]:
    """What the newest priorities measure, and the newest one of each transition by the hash of its id.

    Rows of every status count. Rows whose priority is of another kind than the newest iteration's count as not yet
    scored: a bound on the KL and a negative log-likelihood are not comparable.
    """
    scored = priorities.select(
        ID_HASH, pl.col("iteration").cast(pl.Int32), "priority", pl.col("priority_kind").cast(KINDS)
    ).collect(engine="streaming")
    if not scored["iteration"].is_sorted():
        scored = scored.sort("iteration", maintain_order=True)
    newest = scored.filter(pl.col("iteration") == pl.col("iteration").last())
    kind = str(newest["priority_kind"][0]) if newest.height else None
    if scored["priority_kind"].n_unique() > 1:
        scored = scored.filter(pl.col("priority_kind") == kind)
    return kind, LatestValueIndex(_array(scored["key"]), _array(scored["priority"]))


def priority_probabilities(p: np.ndarray, *, alpha: float, epsilon: float) -> np.ndarray:
    """P(i) for priorities p of shape (N,); sums to 1."""
    scaled = p + epsilon
    np.power(scaled, alpha, out=scaled)
    scaled /= scaled.sum()
    return np.asarray(scaled)


def importance_weights(probability: np.ndarray, candidates: int, *, beta: float) -> np.ndarray:
    """(N P(i))^-beta of the drawn rows, shape (n,), divided by their maximum."""
    weights = np.power(candidates * probability, -beta)
    return np.asarray(weights / weights.max())
