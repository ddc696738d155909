"""The manifests of deploy/kubernetes and the jobs of its pools: they fit Kubernetes' schemas and each other."""

import copy
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from schemas.config import PoolsSection
from storage.databases import Database
from tests.support.kubernetes import (
    FOLDER,
    OLDEST,
    POOLS,
    Manifest,
    as_sent,
    check,
    manifests,
    pod_specs,
    rendered,
    template_of,
)

VARIABLES = {
    "gpus": 2, "cpu_limit": "16", "priority_class_name": "batch", "node_selector": {"kind": "h100"},
    "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}], "env": {"NCCL_DEBUG": "WARN"},
    "labels": {"team": "rl"}, "shared_memory": "64Gi", "image": "registry.example/nlac:2",
}  # fmt: skip


def pod(job: Manifest) -> Manifest:
    found: Manifest = job["spec"]["template"]["spec"]
    return found


def container(job: Manifest) -> Manifest:
    (found,) = pod(job)["containers"]
    assert isinstance(found, dict)
    return found


def references(value: Any, kind: str) -> Iterator[Manifest]:
    """What stands under a key, however deep."""
    if isinstance(value, dict):
        for name, under in value.items():
            if name == kind:
                yield under
            yield from references(under, kind)
    elif isinstance(value, list):
        for one in value:
            yield from references(one, kind)


def newest() -> str:
    schemas = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    return str(schemas.latest_version())


def test_the_manifests_fit_the_oldest_and_the_newest_schemas() -> None:
    found = manifests()
    assert len(found) > 12
    for version in (OLDEST, newest()):
        for manifest in found:
            check(manifest, version)


@pytest.mark.parametrize("variables", [{}, VARIABLES], ids=["defaults", "all set"])
@pytest.mark.parametrize("pool", POOLS)
def test_the_job_of_a_pool_fits_the_schemas(pool: str, variables: dict[str, Any]) -> None:
    job = as_sent(rendered(template_of(pool), variables))
    check(job)
    check(job, newest())
    assert "{{" not in json.dumps(job)


Spoil = Callable[[Manifest], Any]
MISTAKES: dict[str, Spoil] = {
    "a field of the job that is none": lambda job: job["spec"].update(backofLimit=0),
    "a field of the pod that is none": lambda job: pod(job).update(nodeSelectors={}),
    "a field of the container that is none": lambda job: container(job).update(resource={}),
    "a number as a text": lambda job: job["spec"].update(backoffLimit="none"),
    "a mapping as a list": lambda job: pod(job).update(nodeSelector=["gpu"]),
    "a variable's value that is no text": lambda job: container(job)["env"].append({"name": "A", "value": 1}),
    "a reference without a key": lambda job: next(references(job, "secretKeyRef")).pop("key"),
    "a volume of no kind": lambda job: pod(job)["volumes"].append({"name": "a", "emptyDirectory": {}}),
}


@pytest.mark.parametrize("spoil", MISTAKES.values(), ids=MISTAKES)
def test_a_planted_mistake_does_not_fit(spoil: Spoil) -> None:
    schemas = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    job = as_sent(rendered(template_of("training")))
    check(job)
    spoil(job)
    with pytest.raises(schemas.ValidationError):
        check(job)


def test_gpu_pools_ask_for_gpus_shared_memory_and_their_nodes_and_the_third_for_none() -> None:
    jobs = {pool: rendered(template_of(pool)) for pool in POOLS}
    for pool in ("inference", "training"):
        assert container(jobs[pool])["resources"]["limits"]["nvidia.com/gpu"] == 8
        assert pod(jobs[pool])["nodeSelector"] and pod(jobs[pool])["tolerations"]
        (memory,) = (volume for volume in pod(jobs[pool])["volumes"] if volume["name"] == "shared-memory")
        assert memory["emptyDir"] == {"medium": "Memory", "sizeLimit": "32Gi"}
        assert {"name": "shared-memory", "mountPath": "/dev/shm"} in container(jobs[pool])["volumeMounts"]
    assert "nvidia.com/gpu" not in container(jobs["orchestration"])["resources"]["limits"]
    assert not {"nodeSelector", "tolerations"} & set(pod(jobs["orchestration"]))


def test_a_run_may_set_each_variable() -> None:
    job = rendered(template_of("orchestration"), VARIABLES)
    assert container(job)["image"] == VARIABLES["image"]
    assert container(job)["resources"]["limits"]["nvidia.com/gpu"] == 2
    assert pod(job)["nodeSelector"] == VARIABLES["node_selector"]
    assert {"name": "NCCL_DEBUG", "value": "WARN"} in container(job)["env"]
    assert job["metadata"]["labels"]["team"] == "rl"


def test_the_templates_differ_in_the_defaults_of_their_variables_alone() -> None:
    jobs = [template_of(pool)["job_configuration"] for pool in POOLS]
    assert jobs[0] == jobs[1] == jobs[2]
    named = [template_of(pool)["variables"]["properties"].keys() for pool in POOLS]
    assert named[0] == named[1] == named[2]


def test_the_templates_have_all_that_prefects_own_has() -> None:
    kubernetes = pytest.importorskip("prefect_kubernetes", reason="prefect-kubernetes is not installed")
    own = kubernetes.KubernetesWorker.get_default_base_job_template()
    ours = template_of("training")
    assert set(own["variables"]["properties"]) <= set(ours["variables"]["properties"])
    assert set(own["job_configuration"]) == set(ours["job_configuration"])
    unused = [
        name for name in ours["variables"]["properties"]
        if f"{{{{ {name} }}}}" not in json.dumps(ours["job_configuration"])
    ]  # fmt: skip
    assert unused == []


def test_every_name_that_a_pod_refers_to_is_there() -> None:
    found = manifests()
    pods = [*pod_specs(found), *(pod(rendered(template_of(pool))) for pool in POOLS)]
    keys = {one["metadata"]["name"]: set(one["stringData"]) for one in found if one["kind"] == "Secret"}
    for reference in references(pods, "secretKeyRef"):
        assert reference["key"] in keys[reference["name"]]
    assert {one["name"] for one in references(pods, "secretRef")} <= set(keys)
    settings = {one["metadata"]["name"]: one["data"] for one in found if one["kind"] == "ConfigMap"}
    assert all(one["name"] in settings for one in references(pods, "configMapRef"))
    assert all(one["key"] in settings[one["name"]] for one in references(pods, "configMapKeyRef"))
    claims = {one["metadata"]["name"] for one in found if one["kind"] == "PersistentVolumeClaim"}
    assert {one["claimName"] for one in references(pods, "persistentVolumeClaim")} <= claims
    accounts = {one["metadata"]["name"] for one in found if one["kind"] == "ServiceAccount"}
    assert {one["serviceAccountName"] for one in pods if "serviceAccountName" in one} <= accounts


def test_no_manifest_holds_a_secret() -> None:
    secrets = [one for one in manifests() if one["kind"] == "Secret"]
    assert secrets and not any(value for one in secrets for value in one["stringData"].values())
    secret = re.compile(r"(AUTH_STRING|KEY|KEY_ID|SECRET|TOKEN|DATABASE|CONNECTION_URL)$")
    naming = re.compile(r"_SECRET_(NAME|KEY)$")  # settings that say which secret, not what it holds
    given = [
        entry
        for one in (*pod_specs(manifests()), *(pod(rendered(template_of(pool))) for pool in POOLS))
        for entries in references(one, "env")
        for entry in entries
        if secret.search(entry["name"]) and not naming.search(entry["name"])
    ]
    assert len(given) > 10 and not [entry["name"] for entry in given if "value" in entry]


def test_a_stage_of_a_drained_node_is_started_anew_and_an_iteration_is_not() -> None:
    """Prefect would start an iteration anew while its stage still runs."""
    behaviour = {
        pool: entry["value"]
        for pool in POOLS
        for entry in container(rendered(template_of(pool)))["env"]
        if entry["name"] == "PREFECT_FLOW_RUN_EXECUTE_SIGTERM_BEHAVIOR"
    }
    assert behaviour == {"orchestration": "crash", "inference": "reschedule", "training": "reschedule"}
    assert all(pod(rendered(template_of(pool)))["restartPolicy"] == "Never" for pool in POOLS)
    assert all(rendered(template_of(pool))["spec"]["backoffLimit"] == 0 for pool in POOLS)


def test_no_pod_has_privileges() -> None:
    for one in (*pod_specs(manifests()), *(pod(rendered(template_of(pool))) for pool in POOLS)):
        assert one["securityContext"]["runAsNonRoot"] is True
        assert one["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert (
            one["enableServiceLinks"] is False
        )  # else PREFECT_SERVER_PORT would be Kubernetes' and not Prefect's
        for each in one["containers"]:
            assert each["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }


def test_workers_serve_the_pools_of_the_default_configuration() -> None:
    pools, defaults = {"nlac-" + pool for pool in POOLS}, PoolsSection()
    assert pools == {defaults.orchestration, defaults.inference, defaults.training}
    (workers,) = (one for one in manifests() if one["metadata"]["name"] == "nlac-workers")
    told = [each["args"] for each in pod(workers)["containers"]]
    assert {words[words.index("--pool") + 1] for words in told} == pools
    ports = [each["ports"][0]["containerPort"] for each in pod(workers)["containers"]]
    assert len(set(ports)) == len(ports)


def test_servers_get_their_database_in_the_form_of_their_driver() -> None:
    """The secrets have the form that docs/hosts.md names."""
    for address in ("postgresql://u:p%40q@db:5433/prefect", "postgresql://u:p@db/prefect?sslmode=require"):
        for server, variable, wanted in (
            ("prefect-server", "PREFECT_SERVER_DATABASE_CONNECTION_URL", Database("", address).for_prefect),
            ("mlflow", "MLFLOW_BACKEND_STORE_URI", Database("", address).for_mlflow),
        ):
            found = (
                one
                for one in manifests()
                if one["kind"] == "Deployment" and one["metadata"]["name"] == server
            )
            shell, options, script = container(next(found))["args"]
            told, _, _ = script.rpartition("exec ")
            secrets = dict.fromkeys(("NLAC_PREFECT_DATABASE", "NLAC_MLFLOW_DATABASE"), address)
            said = subprocess.check_output(
                [shell, options, f'{told}echo "${variable}"'], env=secrets, text=True
            )
            assert said.strip() == wanted


def test_pods_that_open_the_data_root_have_their_mirror_on_a_volume_and_the_keys_of_the_bucket() -> None:
    (settings,) = (one["data"] for one in manifests() if one["kind"] == "ConfigMap")
    (console,) = (one for one in manifests() if one["metadata"]["name"] == "nlac-console")
    for one in (console, *(rendered(template_of(pool)) for pool in POOLS)):
        (mount,) = (each for each in container(one)["volumeMounts"] if each["name"] == "scratch")
        assert settings["NLAC_MIRROR"].startswith(f"{mount['mountPath']}/") and not mount.get("readOnly")
        assert {"configMapRef": {"name": "nlac"}} in container(one)["envFrom"]
        assert {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "NLAC_MLFLOW_DATABASE"} <= {
            each["name"] for each in container(one)["env"]
        }


def test_kustomize_names_every_file_and_builds() -> None:
    text = (FOLDER / "kustomization.yaml").read_text(encoding="utf-8")
    optional = {"kustomization.yaml", "secrets.example.yaml", "mlflow.yaml"}
    assert {file.name for file in FOLDER.glob("*.yaml")} == {*yaml.safe_load(text)["resources"], *optional}
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    made = subprocess.run(["kubectl", "kustomize", str(FOLDER)], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    built = list(yaml.safe_load_all(made.stdout))
    for manifest in built:
        check(manifest)
    (pools,) = (one for one in built if one["metadata"]["name"] == "nlac-pools")
    assert {name: json.loads(text) for name, text in pools["data"].items()} == {
        f"{pool}.json": template_of(pool) for pool in POOLS
    }


def test_a_template_is_not_changed_by_being_rendered() -> None:
    template = template_of("training")
    before = copy.deepcopy(template)
    rendered(template, VARIABLES)
    assert template == before
