"""The environment variables of the stack's processes: its own Prefect, no telemetry, its own caches."""

import os
from pathlib import Path
from urllib.parse import urlsplit

from flows.stack.hosts import HEARTBEAT_SECONDS, LOOPBACK
from schemas.load import STARTED_IN
from storage.databases import PREFECT
from tasks.engines.models import model_cache
from tasks.thread_waits import short_waits

STACK_MARK = "NLAC_STACK"
"""Holds the data root in every process of its stack, so that processes left behind can be found."""

PROFILE = "nlac"
"""Name of the Prefect profile that holds the stack's secret, and of the user whom the secret belongs to."""

STACK_SECRET = "NLAC_STACK_SECRET"
"""Holds the secret of the stack's servers, "user:password", or the path of a private file that does."""

STACK_DIR = "NLAC_STACK_DIR"
"""Names the stack's folder of this host, where hosts share the data root."""

_CACHES = {
    "XDG_CACHE_HOME": "",
    "MPLCONFIGDIR": "matplotlib",
    "NLTK_DATA": "nltk",
    "NUMBA_CACHE_DIR": "numba",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "VLLM_CACHE_ROOT": "vllm",
    "VLLM_CONFIG_ROOT": "vllm-config",
}


def stack_dir(root: Path) -> Path:
    """The folder of this host's stack: database, logs, progress and state."""
    return Path(os.environ.get(STACK_DIR) or root / ".stack")


def profiles_path(root: Path) -> Path:
    """The file of Prefect profiles that holds the stack's secret; `flows.stack.private` writes it."""
    return stack_dir(root) / "profiles.toml"


def quiet_environment(root: Path) -> dict[str, str]:
    """Switches and cache folders that keep a process from calling home or writing outside the data root.

    The user's caches of models stay: models are large, and shared between programs and data roots.
    """
    cache = root / ".cache"
    old_cache = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    hub = os.environ.get("HF_HOME") or str(Path(old_cache) / "huggingface")
    switches = {
        "DO_NOT_TRACK": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "VLLM_NO_USAGE_STATS": "1",
    }
    models = {"HF_HOME": hub, "NLAC_MODEL_CACHE": str(model_cache().resolve())}
    return {**models, **switches, **{name: str(cache / folder) for name, folder in _CACHES.items()}}


def client_environment(root: Path, api_url: str) -> dict[str, str]:
    """The user's environment, with Prefect pointed at the stack and its secret whatever the user's profile or
    variables say.

    Args:
        root: the data root.
        api_url: address of the stack's Prefect API.
    """
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
    home = stack_dir(root) / "prefect"
    own_hosts = dict.fromkeys((LOOPBACK, urlsplit(api_url).hostname or LOOPBACK))
    ours = {
        "NLAC_DATA": str(root),
        STARTED_IN: os.environ.get(STARTED_IN) or str(Path.cwd()),
        "PREFECT_API_URL": api_url,
        "PREFECT_HOME": str(home),
        "PREFECT_PROFILES_PATH": str(profiles_path(root)),
        # Prefect 3.7 derives these from the user's home, wherever PREFECT_HOME points.
        "PREFECT_LOGGING_CONFIG_PATH": str(home / "logging.yml"),
        "PREFECT_RESULTS_LOCAL_STORAGE_PATH": str(home / "storage"),
        "PREFECT_SERVER_MEMO_STORE_PATH": str(home / "memo_store.toml"),
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
        # The lower-case name wins over the other. No request to the stack goes through a proxy.
        "no_proxy": ",".join(
            filter(None, (os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), *own_hosts))
        ),
        "PYTHONUNBUFFERED": "1",
    }
    if searched := inherited.get("PYTHONPATH"):  # workers run in another folder
        folders = [str(Path(folder).resolve()) for folder in searched.split(os.pathsep)]
        ours["PYTHONPATH"] = os.pathsep.join(folders)
    return {**inherited, **quiet_environment(root), **ours}


def service_environment(root: Path, api_url: str) -> dict[str, str]:
    """The environment of the stack's own processes: the client's, with the mark and short polling intervals."""
    ours = {
        STACK_MARK: str(root),
        "PREFECT_CLI_PROMPT": "false",
        "PREFECT_LOGGING_COLORS": "false",
        "PREFECT_RUNNER_POLL_FREQUENCY": "2",
        # In memory, a lease on the GPU would be lost with a killed server, and the GPU be taken for ever.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
        "PREFECT_SERVER_SERVICES_CANCELLATION_CLEANUP_LOOP_SECONDS": "5",
        # By default each task run's event is a transaction of its own. Requests then find SQLite locked, and clients
        # repeat them only after seconds. So 200 events are written at once, or what there is after 5 s.
        "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_BATCH_SIZE": "200",
        "PREFECT_SERVER_SERVICES_REPOSSESSOR_LOOP_SECONDS": "5",
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "200",
        "PREFECT_WORKER_HEARTBEAT_SECONDS": str(HEARTBEAT_SECONDS),
        "PREFECT_WORKER_QUERY_SECONDS": "2",
    }
    theirs = {**short_waits(), **client_environment(root, api_url)}
    for secret in (
        PREFECT,
        STACK_SECRET,
    ):  # the server gets the first from the supervisor; a profile holds the second
        theirs.pop(secret, None)
    return {**theirs, **ours}
