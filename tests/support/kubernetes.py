"""The manifests of deploy/kubernetes, the jobs that its pools' templates give, and Kubernetes' schemas."""

import asyncio
import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml

from schemas.load import PROJECT_ROOT

FOLDER = PROJECT_ROOT / "deploy" / "kubernetes"
POOLS = ("orchestration", "inference", "training")
OLDEST = "1.31"
"""The oldest Kubernetes whose schemas the manifests must fit."""

Manifest = dict[str, Any]


def manifests() -> list[Manifest]:
    """All that the folder's files describe, secrets without values included; not the file for kustomize itself."""
    files = sorted(path for path in FOLDER.glob("*.yaml") if path.name != "kustomization.yaml")
    return [found for file in files for found in yaml.safe_load_all(file.read_text(encoding="utf-8"))]


def pod_specs(found: list[Manifest]) -> list[Manifest]:
    """The pods of deployments and jobs."""
    return [one["spec"]["template"]["spec"] for one in found if one["kind"] in ("Deployment", "Job")]


def template_of(pool: str) -> Manifest:
    """The base job template of a pool."""
    content: Manifest = json.loads((FOLDER / "pools" / f"{pool}.json").read_text(encoding="utf-8"))
    return content


def rendered(
    template: Manifest, variables: dict[str, Any] | None = None, run: str = "critique-trial-0"
) -> Manifest:
    """The job that a Kubernetes worker makes of a template for a flow run, by the worker's own code."""
    worker = pytest.importorskip("prefect_kubernetes.worker", reason="prefect-kubernetes is not installed")
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.objects import FlowRun

    # Asked only for blocks and variables, which a template does not name: nobody listens there.
    client = PrefectClient("http://127.0.0.1:9/api")
    made = worker.KubernetesWorkerJobConfiguration.from_template_and_values(
        template, variables or {}, client=client
    )
    configuration = asyncio.run(made)
    configuration.prepare_for_flow_run(FlowRun(id=uuid4(), flow_id=uuid4(), name=run), worker_name="worker")
    job: Manifest = configuration.job_manifest
    return job


def as_sent(job: Manifest) -> Manifest:
    """A job without two fields that prefect-kubernetes asks for and a pod has not; Kubernetes leaves them out."""
    pod = job["spec"]["template"]["spec"]
    assert (pod.pop("parallelism"), pod.pop("completions")) == (1, 1)
    return job


def check(manifest: Manifest, version: str = OLDEST) -> None:
    """Raise where a manifest does not fit Kubernetes' schemas: a field that it has not, or another type."""
    schemas = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    schemas.validate(manifest, version, strict=True)


def kubeconfig(home: Path, address: str) -> Path:
    """A file that tells a Kubernetes client of a server."""
    file = home / "kubeconfig.yaml"
    named = [{"name": "here", "cluster": {"server": address}}]
    context = [{"name": "here", "context": {"cluster": "here", "user": "here"}}]
    content = {
        "apiVersion": "v1", "kind": "Config", "current-context": "here", "clusters": named, "contexts": context,
        "users": [{"name": "here", "user": {"token": "any"}}],
    }  # fmt: skip
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    return file
