"""How many environment steps a run has used: those it collected, and those it played to see a future."""

import polars as pl

from storage.store import Store
from tasks.text.transcript import REPLY


def collected_steps(store: Store, run: str, iteration: int) -> int:
    """Steps of the rollouts of iterations 0..iteration."""
    return sum(
        made.manifest.tables["transitions"].rows
        for i in range(iteration + 1)
        if (made := store.committed(run, "rollout", i)) is not None
    )


def simulated_steps(store: Store, run: str, iteration: int) -> int:
    """Steps played in place of predicted futures (algorithms self_distillation and nlrl) in iterations 0..iteration.

    Those that lead back to the state, where the episode's actions are played again, do not count, nor does a
    rollout that failed, of which nothing was recorded.
    """
    played = 0
    for stage in ("critique", "refinement"):
        for made in (store.committed(run, stage, i) for i in range(iteration + 1)):
            if made is not None:
                told = made.scan("futures").filter(pl.col("source") == "rollout").select("description")
                played += told.select(pl.col("description").str.count_matches(REPLY).sum()).collect().item()
    return played


def used_steps(store: Store, run: str, iteration: int) -> int:
    """Both, which is what runs are compared at."""
    return collected_steps(store, run, iteration) + simulated_steps(store, run, iteration)
