"""MLflow's registries: adapters as versions of models policy, critic and target; prompts; the champion."""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.rows import Evaluation
from schemas.rows.evaluated import LEAST_COVERAGE, coverage
from storage.committed import Committed

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

CHAMPION = "champion"
VERSION, RUN, SUCCESS = "nlac.version", "nlac.run", "nlac.success_rate"
VALIDATION = "nlac.validation_success_rate"
DIGEST = "nlac.digest"
IS_PROMPT = "mlflow.prompt.is_prompt"


def register_adapters(
    client: "MlflowClient", experiment_id: str, run_id: str, committed: Committed, root: Path
) -> None:
    """Register each adapter as a logged model and a model version. The source is the committed folder, relative to the
    data root: no copies, and the data root can be moved."""
    from mlflow.entities import LoggedModelOutput

    m = committed.manifest
    files = {file.path for file in m.files}
    for kind, entry in m.adapters.items():
        known = _versions(client, kind)
        if any(v.tags.get(VERSION) == entry.version and v.run_id == run_id for v in known):
            continue
        tags = {VERSION: entry.version, RUN: m.run, "nlac.iteration": str(m.iteration), DIGEST: entry.digest}
        folder = committed.path / entry.folder
        source = folder.relative_to(root).as_posix()
        model = client.create_logged_model(
            experiment_id,
            name=kind,
            source_run_id=run_id,
            tags={**tags, "nlac.folder": source},
            model_type="peft" if f"{entry.folder}/adapter_config.json" in files else "transformers",
        )
        client.finalize_logged_model(model.model_id, "READY")
        client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step=0)])
        _ensure_model(client, kind)
        client.create_model_version(kind, source=source, run_id=run_id, tags=tags, model_id=model.model_id)


def crown(client: "MlflowClient", committed: Committed) -> None:
    """Note an evaluation at the policy's model version, and point the aliases at the best ones on the validation tasks.

    `champion` is the best over all runs of the data root. `champion-<run>` is the best of one run; take it where runs
    play different environments. The higher success rate on the validation tasks wins, and among equals the earlier
    version. The eval split never chooses: without validation figures no alias moves. An evaluation that covers less
    than LEAST_COVERAGE of its episodes is not noted.
    """
    m = committed.manifest
    if Evaluation.TABLE not in m.tables:
        return
    evaluations = committed.scan(Evaluation.TABLE).filter(status="ok").drop_nulls("success_rate").collect()
    for row in evaluations.iter_rows(named=True):
        if (coverage(row["episodes"], row["failed_episodes"]) or 0.0) < LEAST_COVERAGE:
            continue
        for version in _versions(client, "policy"):
            if version.tags.get(VERSION) == row["policy_version"] and version.tags.get(RUN) == m.run:
                tag = VALIDATION if row["split"] == "validation" else SUCCESS
                client.set_model_version_tag("policy", version.version, tag, repr(row["success_rate"]))
                client.set_model_version_tag(
                    "policy", version.version, "nlac.environment", row["environment"]
                )
    validated = [v for v in _versions(client, "policy") if VALIDATION in v.tags]
    run_alias = f"{CHAMPION}-{re.sub(r'[^A-Za-z0-9_-]', '_', m.run)}"
    for alias, candidates in (
        (CHAMPION, validated),
        (run_alias, [v for v in validated if v.tags.get(RUN) == m.run]),
    ):
        best = max(candidates, key=lambda v: (float(v.tags[VALIDATION]), -int(v.version)), default=None)
        if best is not None and alias not in best.aliases:
            client.set_registered_model_alias("policy", alias, str(best.version))


def aliased_sources(client: "MlflowClient", root: Path) -> list[str]:
    """Folders of the adapters that an alias names."""
    return [
        str(root / str(version.source))
        for model in client.search_registered_models(max_results=1000)
        for number in dict(model.aliases).values()
        if (version := client.get_model_version(model.name, str(number))).source
    ]


def forget_adapters(client: "MlflowClient", run: str) -> None:
    """Delete the model versions of a run; an alias of one goes with it."""
    for model in client.search_registered_models(max_results=1000):
        for version in _versions(client, model.name):
            if version.tags.get(RUN) == run:
                client.delete_model_version(model.name, version.version)


def mirror_prompts(
    client: "MlflowClient", experiment_id: str, run_id: str, committed: Committed, texts: Mapping[str, str]
) -> None:
    """Register the templates that a stage rendered, a new version only if the text is new, and link them to its run.

    Args:
        client: the MLflow client.
        experiment_id: where the prompt is shown.
        run_id: the stage's run.
        committed: names each template's digest; a text of another digest is not registered.
        texts: template texts by name.
    """
    from mlflow.prompt.constants import PROMPT_EXPERIMENT_IDS_TAG_KEY
    from mlflow.tracing.constant import TraceTagKey

    linked = []
    for template, digest in sorted(committed.manifest.fingerprint_inputs.prompts.items()):
        text = texts.get(template)
        if text is None or not hashlib.sha256(text.encode()).hexdigest().startswith(digest):
            continue
        name = "nlac-" + re.sub(r"[^A-Za-z0-9_.-]", "-", template)
        prompt = client.get_prompt(name) or client.create_prompt(
            name, description=f"template {template} of nlac"
        )
        shown = [e for e in prompt.tags.get(PROMPT_EXPERIMENT_IDS_TAG_KEY, "").split(",") if e]
        if experiment_id not in shown:
            client.set_prompt_tag(
                name, PROMPT_EXPERIMENT_IDS_TAG_KEY, f",{','.join([*shown, experiment_id])},"
            )
        known = {v.tags.get(DIGEST): v.version for v in _prompt_versions(client, name)}
        version = known.get(digest)
        if version is None:
            version = client.create_prompt_version(name, text, tags={DIGEST: digest}).version
        linked.append({"name": name, "version": str(version)})
    if linked:
        # link_prompt_version_to_run would write to the process's tracking store, which may be another one.
        client.set_tag(run_id, TraceTagKey.LINKED_PROMPTS, json.dumps(linked))


def _versions(client: "MlflowClient", name: str) -> "list[ModelVersion]":
    return list(client.search_model_versions(f"name='{name}'", max_results=10_000))


def _prompt_versions(client: "MlflowClient", name: str) -> "list[ModelVersion]":
    # Prompts are model versions, and a search leaves them out unless it asks for this tag.
    wanted = f"name='{name}' and tags.`{IS_PROMPT}` = 'true'"
    return list(client.search_model_versions(wanted, max_results=10_000))


def _ensure_model(client: "MlflowClient", name: str) -> None:
    from mlflow.exceptions import MlflowException

    try:
        client.get_registered_model(name)
    except MlflowException:
        client.create_registered_model(name, description=f"{name} adapters or checkpoints trained by nlac")
