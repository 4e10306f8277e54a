"""What the chart renders is what the operator and restricted Pod Security accept."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

Render = Callable[..., list[dict[str, Any]]]
Schema = dict[str, Any]

KIND = ("-f", "charts/torchtally/ci/kind-values.yaml")
OPERATOR = "github.com/kubeflow/training-operator@v1.9.4"
CRD = "manifests/base/crds/kubeflow.org_pytorchjobs.yaml"

VALUES: dict[str, tuple[str, ...]] = {
    "defaults": (),
    "kind": KIND,
    "alone": ("--set", "workers=0"),
    "amd": ("--set", "resources.gpuResourceName=amd.com/gpu,resources.gpu=8,nprocPerNode=auto"),
    "command": ("--set", "task=,command={bash,-c},args={python main.py}"),
    "everything": (
        "--set=backoffLimit=0,activeDeadlineSeconds=1000000,ttlSecondsAfterFinished=60,restartPolicy=ExitCode",
        "--set=cleanPodPolicy=All,shmSize=1Gi,data.persistentVolumeClaim.claimName=images,model.existingClaim=models",
        "--set=env[0].name=A,env[0].valueFrom.fieldRef.fieldPath=status.podIP,envFrom[0].secretRef.name=keys",
        "--set=image.pullSecrets[0].name=registry,tolerations[0].operator=Exists,nodeSelector.pool=gpu",
        "--set=resources.limits.rdma/hca=1,resources.requests.cpu=500m,labels.team=vision,annotations.owner=me",
        '--set-json=affinity={"podAntiAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":'
        '[{"topologyKey":"kubernetes.io/hostname"}]}}',
    ),
}
every_values = pytest.mark.parametrize("values", VALUES.values(), ids=VALUES.keys())


@pytest.fixture(scope="session")
def crd() -> Schema:
    """The schema of PyTorchJob v1, of the file in TORCHTALLY_PYTORCHJOB_CRD or of the operator's Go module."""
    path = os.environ.get("TORCHTALLY_PYTORCHJOB_CRD")
    if not path:
        if shutil.which("go") is None:
            pytest.skip("the operator's CRD needs go, or its file's name in TORCHTALLY_PYTORCHJOB_CRD")
        command = ["go", "mod", "download", "-json", OPERATOR]
        result = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if result.returncode:
            pytest.skip(f"go cannot download {OPERATOR}: {result.stderr or result.stdout}")
        path = str(Path(json.loads(result.stdout)["Dir"]) / CRD)
    text = Path(path).read_text()
    [version] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))["spec"]["versions"]
    return closed(version["schema"]["openAPIV3Schema"])


def closed(schema: Schema) -> Schema:
    """The schema, refusing fields that it does not name, which an API server would drop in silence."""
    schema = {key: closed(value) if isinstance(value, dict) else value for key, value in schema.items()}
    if "type" in schema and "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        schema["additionalProperties"] = False
    return schema


def replicas(job: dict[str, Any]) -> dict[str, Any]:
    specs: dict[str, Any] = job["spec"]["pytorchReplicaSpecs"]
    return specs


@every_values
def test_jobs_validate_against_the_operators_schema(render: Render, crd: Schema, values: tuple[str, ...]) -> None:
    [job] = [document for document in render(*values) if document["kind"] == "PyTorchJob"]
    jsonschema.Draft202012Validator(crd).validate(job)


def test_the_operators_schema_finds_mistakes(render: Render, crd: Schema) -> None:
    [job] = [document for document in render() if document["kind"] == "PyTorchJob"]
    validator = jsonschema.Draft202012Validator(crd)
    replicas(job)["Worker"]["template"]["spec"]["containers"][0]["imagePullPolice"] = "Always"
    job["spec"]["nprocPerNode"] = 1
    mistaken = {error.json_path.rsplit(".", 1)[1] for error in validator.iter_errors(job)}
    assert mistaken == {"nprocPerNode", "containers[0]"}


@every_values
def test_the_operators_webhook_has_nothing_to_refuse(render: Render, values: tuple[str, ...]) -> None:
    [job] = [document for document in render(*values) if document["kind"] == "PyTorchJob"]
    assert isinstance(job["spec"]["nprocPerNode"], str) and job["spec"]["nprocPerNode"]
    assert replicas(job)["Master"]["replicas"] == 1
    assert replicas(job).get("Worker", {"replicas": 1})["replicas"] >= 1
    for replica in replicas(job).values():
        [container] = replica["template"]["spec"]["containers"]
        assert container["name"] == "pytorch" and container["image"]


@every_values
def test_pods_pass_restricted_pod_security(render: Render, values: tuple[str, ...]) -> None:
    documents = render(*values)
    [job] = [document for document in documents if document["kind"] == "PyTorchJob"]
    [test] = [document for document in documents if document["kind"] == "Pod"]
    for pod in [test["spec"], *(replica["template"]["spec"] for replica in replicas(job).values())]:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] != 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        for volume in pod.get("volumes", []):
            assert set(volume) - {"name"} <= {"emptyDir", "persistentVolumeClaim"}
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["readOnlyRootFilesystem"] is True  # beyond restricted: nothing is written into the image
