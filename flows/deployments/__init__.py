"""The Prefect flows: iteration, training, one per stage; their hooks, progress and MLflow tracking."""
