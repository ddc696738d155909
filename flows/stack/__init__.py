"""The local stack: Prefect server, work pools, workers, and the supervisor that owns them."""

GPU_LIMIT = "nlac-gpu"
"""Global concurrency limit that keeps the stages of both GPU pools apart where they share one device."""
