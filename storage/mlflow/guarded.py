"""The MLflow server that asks every request for the secret: an app of `mlflow server` (entry point `mlflow.app`)."""

from typing import Any


def create_app() -> Any:
    """MLflow's own application, which is a FastAPI one, guarded."""
    from mlflow.server.fastapi_app import app

    from storage.guard import RequireSecret

    app.add_middleware(RequireSecret)
    return app
