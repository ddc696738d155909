"""The Prefect flows: iteration, training, and one per stage, with their hooks, progress and MLflow tracking."""

from tasks.lean_imports import without

with without("pandas"):  # a second for tasks that are given data frames; ours are given references
    import prefect.cache_policies  # noqa: F401
