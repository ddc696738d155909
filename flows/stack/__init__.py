"""The local stack: Prefect server, work pools, workers, and the supervisor that owns them."""
