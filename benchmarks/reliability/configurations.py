"""The runs of the soak: small iterations of the number game whose results repeat bit for bit.

Every run trains a tiny model with random weights. They differ in who plays the roles.
"""

from pathlib import Path
from typing import Any

from schemas.config import Config
from schemas.load import PROJECT_ROOT
from tests.support.iterations import ROLES, small_config
from tests.support.tiny import make_tiny_checkpoint

STAND_IN = Path(__file__).parent / "stand_in"
"""Comes first on PYTHONPATH, so that `python -m vllm.entrypoints.openai.api_server` is the stand-in."""

_LOCAL = {"engine": "local", "structured": True, "max_tokens": 96, "line_chars": 40}
_SERVED = {"engine": "served", "max_tokens": 200}
_ENGINES: dict[str, dict[str, Any]] = {
    "local": {"backend": "transformers", "deterministic": True, "max_batch": 4},
    "served": {"backend": "openai", "serve": {"start_seconds": 120}, "max_batch": 4},
}
RUNS: dict[str, dict[str, dict[str, Any]]] = {
    "scripted": {},
    "transformers": {"policy": _LOCAL, "predict": _LOCAL},
    "served": dict.fromkeys(ROLES, _SERVED),
    "mixed": {"policy": _SERVED, "evaluate": _SERVED, "predict": _LOCAL},
}
"""Name of a run -> its roles that rules do not play."""


def is_served(run: str) -> bool:
    """Whether a server of our own plays in a run."""
    return any(role["engine"] == "served" for role in RUNS[run].values())


def make_checkpoint(folder: Path) -> Path:
    """The tiny model, whose tokenizer knows the words of the prompts."""
    if not (folder / "config.json").exists():
        texts = [path.read_text(encoding="utf-8") for path in sorted((PROJECT_ROOT / "prompts").glob("*.j2"))]
        make_tiny_checkpoint(folder, texts)
    return folder


def configuration(run: str, checkpoint: Path, algorithm: str = "nlac") -> Config:
    """The configuration of a run.

    Args:
        run: its name in RUNS.
        checkpoint: of the tiny model.
        algorithm: whose stages are run.
    """
    roles = RUNS[run]
    used = {role["engine"] for role in roles.values()}
    return small_config(
        checkpoint,
        run=run,
        algorithm=algorithm,
        engines={name: section for name, section in _ENGINES.items() if name in used},
        roles=roles,
        critic={"batch_rows": 4},
        policy={"batch_rows": 4},
        trainer={"checkpoint_steps": 1},
        # A killed process would hold the one GPU for a minute, which is the shortest lease that Prefect grants.
        pools={"shared_gpu": False},
        faults={"retry_seconds": 1.0},
    )
