"""The stack: Prefect server, work pools, workers on one host or several, and the supervisor that owns a host's part."""

from socket import gethostname


def gpu_limit() -> str:
    """The global concurrency limit that keeps the stages of both GPU pools apart on this host, where they share one
    device."""
    return f"nlac-gpu@{gethostname()}"
