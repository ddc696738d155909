"""A configuration of a whole iteration that is small enough for a test."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from schemas.config import Config
from tasks.pipeline.runner import StageResult

Iterate = Callable[..., list[StageResult]]
ROLES = ("policy", "predict", "bootstrap", "correct", "evaluate", "refine")


def small_config(checkpoint: Path, rules: str = "tests.support.rules:number_game", **changes: Any) -> Config:
    """A number game of few rows: scripted roles, a tiny model in training.

    Args:
        checkpoint: the model that the training stages train.
        rules: the scripted players.
        changes: sections of the configuration; a mapping replaces only the fields it names.
    """
    structured = ("policy", "evaluate", "refine")
    base: dict[str, Any] = {
        "run": "trial",
        "model": {
            "name": str(checkpoint), "dtype": "float32", "context_length": 6000, "device": "cpu",
            "lora": {"r": 2, "alpha": 4},
        },
        "engines": {"rules": {"backend": "scripted", "rules": rules}},
        "roles": {r: {"engine": "rules", "structured": r in structured} for r in ROLES},
        "rollout": {"episodes": 4, "max_steps": 6},
        "replay": {"transitions": 10},
        "critic": {"batch_rows": 8, "micro_batch_rows": 4},
        "policy": {"batch_rows": 8, "micro_batch_rows": 4},
        "improvement": {"states": 6},
        "evaluation": {"episodes": 3},
    }  # fmt: skip
    for name, value in changes.items():
        base[name] = (
            {**base[name], **value} if isinstance(value, dict) and isinstance(base.get(name), dict) else value
        )
    return Config.model_validate(base)
