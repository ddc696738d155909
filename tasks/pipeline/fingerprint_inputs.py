"""What determines a stage's output, and the fingerprint over it."""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from prompts import template_digest
from schemas.config import Config
from schemas.config.roles import UNTRAINED
from schemas.load import find_file
from schemas.manifest import FingerprintInputs, Manifest
from storage.files import sha256_file
from tasks.datasets.chats import RETENTION, chat_file, content_digest
from tasks.engines.models import model_digest
from tasks.environments import make_environment
from tasks.environments.base import ReadsFiles
from tasks.prompting.rendering import role_templates
from tasks.runtime.stage import Inputs, Stage, StageFailed

# Fields of an engine that say where and how fast it computes, not what.
_NOT_IN_FINGERPRINT = {"base_url", "api_key_env", "max_batch", "continuous", "serve"}


def collect_fingerprint_inputs(
    stage: Stage, config: Config, iteration: int, inputs: Inputs
) -> FingerprintInputs:
    """All that determines a stage's output.

    Raises:
        StageFailed: the configuration's `model.dtype` is still auto.
    """
    if config.model.dtype == "auto":
        raise StageFailed(
            "model.dtype: auto is not settled, so the stage's output is not determined; pass what "
            "tasks.pipeline.iterations.settle, or begin_iteration, returns"
        )
    resolved = config.model_dump(mode="json")
    values = {path: _at(resolved, path) for path in (*stage.config, *(f"roles.{r}" for r in stage.roles))}
    values |= {
        f"model.{name}": resolved["model"][name] for name in ("dtype", "context_length", "train", "lora")
    }
    values["seed"] = config.seed
    values |= _contents(stage, config)
    models = {"base": model_digest(config.model)}
    for name in sorted(_engines(stage, config)):
        engine = resolved["engines"][name]
        batch = _NOT_IN_FINGERPRINT - ({"max_batch"} if engine["deterministic"] else set())
        values[f"engines.{name}"] = {k: v for k, v in engine.items() if k not in batch}
        if engine["serve"] is not None:
            values[f"engines.{name}"]["serve"] = {}
    for use, adapter in inputs.adapters.items():
        models[use] = adapter.digest if adapter else "base"
    digests = {
        f"{_part(c.manifest, config.run)}.{table}": c.manifest.tables[table].digest
        for table, parts in inputs.tables.items()
        for c in parts
    }
    for use, made in inputs.files.items():
        entry = next(f for f in made.manifest.files if f.path == f"{use}.pt")
        digests[f"{_part(made.manifest, config.run)}/{entry.path}"] = entry.sha256
    environment = make_environment(config.environment)
    if "environment" in stage.config and isinstance(environment, ReadsFiles):
        values |= {f"environment.files.{name}": sha256_file(path) for name, path in environment.files.items()}
    templates = {**environment.templates, **role_templates(config)}
    rehearsed = UNTRAINED if inputs.tables.get("demonstrations") else ()
    values |= {f"roles.{role}.max_tokens": resolved["roles"][role]["max_tokens"] for role in rehearsed}
    return FingerprintInputs(
        stage=stage.name,
        code_version=stage.version,
        run=config.run,
        iteration=iteration,
        config=values,
        prompts={name: template_digest(name, templates) for name in (*stage.templates, *rehearsed)},
        models=models,
        inputs=digests,
    )


def _engines(stage: Stage, config: Config) -> set[str]:
    """Names of the engines that answer in a stage: its roles', and the environment model's where it knows the
    environment."""
    names = {getattr(config.roles, role).engine for role in stage.roles}
    speaks = config.environment.model
    return names | {speaks.engine} if speaks and "environment" in stage.config else names


def _contents(stage: Stage, config: Config) -> dict[str, Any]:
    """Fields that count by what they mean: files of conversations by their content, and validation episodes by their
    number, whether it is stated or follows from `patience`."""
    values: dict[str, Any] = {}
    if "anchor" in stage.config:
        anchor = config.anchor
        digest = content_digest(chat_file(anchor)) if anchor.chat_share else None
        values["anchor"] = {"kl": anchor.kl, "chat_share": anchor.chat_share, "chat_file": digest}
    if "warm_start" in stage.config:
        section = config.warm_start
        digest = content_digest(find_file(section.file)) if section.file else None
        values["warm_start"] = {**section.model_dump(mode="json"), "file": digest}
    if "evaluation.retention" in stage.config and config.evaluation.retention:
        values["evaluation.retention"] = content_digest(RETENTION)
    if "evaluation.validation_episodes" in stage.config:
        values["evaluation.validation_episodes"] = config.evaluation.validation_count
    return values


def _part(made: Manifest, run: str) -> str:
    """An input's name among the fingerprint inputs: stage and iteration, behind the run where it is another one's."""
    name = f"{made.stage}@{made.iteration:05d}"
    return name if made.run == run else f"{made.run}/{name}"


def fingerprint_of(fingerprint_inputs: FingerprintInputs) -> str:
    """The first 12 hex digits of the sha256 of their canonical JSON."""
    canonical = json.dumps(fingerprint_inputs.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def differences(before: FingerprintInputs, now: FingerprintInputs) -> Iterator[str]:
    """One line for each thing that changed: a configuration field, a prompt, a model, an input, the code."""
    if before.code_version != now.code_version:
        yield f"code: version {before.code_version} -> {now.code_version} of the stage"
    old, new = dict(_flat(before.config)), dict(_flat(now.config))
    for path in sorted(old.keys() | new.keys()):
        if old.get(path) != new.get(path):
            yield f"config: {path}: {old.get(path)!r} -> {new.get(path)!r}"
    for what, then, here in (
        ("prompt", before.prompts, now.prompts),
        ("model", before.models, now.models),
        ("input", before.inputs, now.inputs),
    ):
        for name in sorted(then.keys() | here.keys()):
            if then.get(name) != here.get(name):
                yield f"{what}: {name}: {_short(then.get(name))} -> {_short(here.get(name))}"


def _short(digest: str | None) -> str:
    return "none" if digest is None else digest[:12]


def _at(content: dict[str, Any], path: str) -> Any:
    for part in path.split("."):
        content = content[part]
    return content


def _flat(content: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
