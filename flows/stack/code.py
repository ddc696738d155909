"""The step by which a flow run finds the program's code: on each host, what is installed there."""

from schemas.load import PROJECT_ROOT


def own_folder() -> dict[str, str]:
    """Prefect's step of a deployment (prefect.yaml): the folder in which the flow run starts."""
    return {"directory": str(PROJECT_ROOT)}
