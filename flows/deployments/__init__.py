"""The Prefect flows: iteration, training, and one per stage, with their hooks, progress and MLflow tracking."""
