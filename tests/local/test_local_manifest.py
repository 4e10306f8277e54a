"""Which job of a file is meant, and what is refused on the way to it, in the words of the API server and the operator.

The messages are those of Kubernetes 1.34 and training operator 1.9.4, taken from a server-side dry run.
"""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from localjobs import Object, container, pod_spec, pytorchjob, run_script, write

from torchtally.errors import Refused
from torchtally.local import manifest

LISTED = "spec.pytorchReplicaSpecs[Master].template.spec"
MASTER = "spec.pytorchReplicaSpecs.Master.template.spec.containers[0]"
DNS_1035 = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is "
    "'[a-z]([-a-z0-9]*[a-z0-9])?')"
)


def named(name: str) -> Object:
    return pytorchjob("true") | {"metadata": {"name": name}}


def changed(change: Callable[[Object], object]) -> Object:
    document = pytorchjob("true", "true")
    change(document)
    return document


def replicas(document: Object) -> Object:
    found: Object = document["spec"]["pytorchReplicaSpecs"]
    return found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda d: d["metadata"].update(name="1" * 64),
            f'metadata.name: Invalid value: "{"1" * 64}": should match: must be no more than 63 characters,{DNS_1035}',
        ),
        (
            lambda d: replicas(d)["Master"].pop("replicas"),
            "spec.pytorchReplicaSpecs[Master].replicas: Forbidden: must be 1",
        ),
        (
            lambda d: replicas(d)["Worker"].update(replicas=0),
            "spec.pytorchReplicaSpecs[Worker].replicas: Forbidden: must be at least 1",
        ),
        (
            lambda d: replicas(d).update(Chief=copy.deepcopy(replicas(d)["Worker"])),
            'spec.pytorchReplicaSpecs[Chief]: Unsupported value: "Chief": supported values: "Master", "Worker"',
        ),
        (
            lambda d: container(d).update(name="main"),
            "spec.pytorchReplicaSpecs[Master].template.spec.containers: "
            "Required value: must have at least one container with name pytorch",
        ),
        (
            lambda d: pod_spec(d, "Worker").update(containers=[]),
            "[spec.pytorchReplicaSpecs[Worker].template.spec.containers: Required value: must be specified, "
            "spec.pytorchReplicaSpecs[Worker].template.spec.containers: "
            "Required value: must have at least one container with name pytorch]",
        ),
        (
            lambda d: [container(d).pop("image"), replicas(d)["Master"].update(replicas=2)],
            "[spec.pytorchReplicaSpecs[Master].template.spec.containers[0].image: Required value: must be required, "
            "spec.pytorchReplicaSpecs[Master].replicas: Forbidden: must be 1]",
        ),
        (
            lambda d: [d["spec"].update(elasticPolicy={}), replicas(d).pop("Worker")],
            "spec.pytorchReplicaSpecs[Worker]: Required value: must be configured if elastic policy is used",
        ),
        (
            lambda d: d["spec"].update(elasticPolicy={"nProcPerNode": 2}, nprocPerNode="2"),
            "spec.elasticPolicy.nProcPerNode: Forbidden: must not be used with spec.nprocPerNode",
        ),
        (
            lambda d: d["spec"].update(runPolicy={"managedBy": "me"}),
            'spec.runPolicy.managedBy: Unsupported value: "me": supported values: "kueue.x-k8s.io/multikueue", '
            '"kubeflow.org/training-operator"',
        ),
        # What a cluster takes, and then misreads.
        (
            lambda d: d["spec"].update(runPolicy={"cleanPodPolicy": "none"}),
            'spec.runPolicy.cleanPodPolicy: Unsupported value: "none": supported values: "All", "None", "Running"',
        ),
        (
            lambda d: replicas(d)["Worker"].update(restartPolicy="Often"),
            'spec.pytorchReplicaSpecs[Worker].restartPolicy: Unsupported value: "Often": '
            'supported values: "Always", "ExitCode", "Never", "OnFailure"',
        ),
        (lambda d: d.pop("spec"), "spec.pytorchReplicaSpecs: Required value: must be required"),
        (lambda d: d["spec"].pop("pytorchReplicaSpecs"), "spec.pytorchReplicaSpecs: Required value"),
        (
            lambda d: d["spec"].update(nprocPerNode=2),
            'spec.nprocPerNode: Invalid value: "integer": spec.nprocPerNode in body must be of type string: "integer"',
        ),
        (lambda d: container(d).update(commands=["a"]), f'strict decoding error: unknown field "{MASTER}.commands"'),
        (
            lambda d: container(d).update(env=[{"name": "A", "value": 1}]),
            f'{MASTER}.env[0].value: Invalid value: "integer": '
            f'{MASTER}.env[0].value in body must be of type string: "integer"',
        ),
        (lambda d: container(d).update(env=[{"value": "1"}]), f"{MASTER}.env[0].name: Required value"),
        (
            lambda d: container(d).update(env=[{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]),
            f'{LISTED}.containers[0].env[1]: Duplicate value: {{"name":"A"}}',
        ),
        (
            lambda d: container(d).update(
                ports=[{"containerPort": 80}, {"containerPort": 80, "protocol": "UDP"}, {"containerPort": 80}]
            ),
            f'{LISTED}.containers[0].ports[2]: Duplicate value: {{"containerPort":80,"protocol":"TCP"}}',
        ),
        (
            lambda d: pod_spec(d).update(containers=[*pod_spec(d)["containers"], container(d)]),
            f'{LISTED}.containers[1]: Duplicate value: {{"name":"pytorch"}}',
        ),
        (
            lambda d: pod_spec(d).update(volumes=[{"name": "v", "emptyDir": {}}, {"name": "v", "emptyDir": {}}]),
            f'{LISTED}.volumes[1]: Duplicate value: {{"name":"v"}}',
        ),
        (
            lambda d: container(d).update(args="a b"),
            f'{MASTER}.args: Invalid value: "string": {MASTER}.args in body must be of type array: "string"',
        ),
        (
            lambda d: container(d).update(resources={"limits": {"cpu": "4x"}}),
            f'{MASTER}.resources.limits.cpu: Invalid value: "4x": {MASTER}.resources.limits.cpu in body should match '
            r"'^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
            r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$'",
        ),
        (
            lambda d: container(d).update(resources={"limits": {"cpu": 0.5}}),
            f'{MASTER}.resources.limits.cpu: Invalid value: "number": '
            f'{MASTER}.resources.limits.cpu in body must be of type integer,string: "number"',
        ),
    ],
)
def test_refuses_in_the_cluster_s_words(tmp_path: Path, change: Callable[[Object], object], message: str) -> None:
    document = changed(change)
    with pytest.raises(Refused) as refused:
        manifest.load(write(tmp_path, document))
    assert str(refused.value) == f"PyTorchJob {document['metadata']['name']} is invalid: {message} [T21]"


@pytest.mark.parametrize(
    "change",
    [
        lambda d: container(d).update(args=None),
        lambda d: container(d).update(env=[{"name": "A", "value": None}]),
        lambda d: replicas(d).update(Worker=None),
        lambda d: container(d).update(resources={"limits": {"cpu": 2, "memory": "1Gi", "nvidia.com/gpu": 1}}),
        lambda d: container(d).update(livenessProbe={"httpGet": {"port": 80}}),
    ],
)
def test_takes_what_a_cluster_takes(tmp_path: Path, change: Callable[[Object], object]) -> None:
    assert manifest.load(write(tmp_path, changed(change))).job.name == "demo"


def test_warns_of_what_is_deprecated(tmp_path: Path) -> None:
    document = pytorchjob(worker="true", elasticPolicy={"nProcPerNode": 2})
    warnings = manifest.load(write(tmp_path, document)).warnings
    assert warnings == ("spec.elasticPolicy.nProcPerNode is deprecated, use spec.nprocPerNode instead",)


def test_defaults(tmp_path: Path) -> None:
    job = manifest.load(write(tmp_path, changed(lambda d: replicas(d)["Worker"].pop("replicas")))).job
    assert (job.namespace, job.nproc_per_node, job.clean_pod_policy, job.backoff_limit, job.deadline) == (
        ("default", "auto", "None", None, None)
    )
    assert [(pod.replica.restart_policy, pod.replica.port, pod.grace) for pod in job.pods] == [
        ("OnFailure", 23456, 30)
    ] * 2


@pytest.mark.parametrize(
    ("given", "low", "high"),
    [
        ({}, 4, 4),
        ({"minReplicas": 2}, 2, 2),
        ({"maxReplicas": 6}, 6, 6),
        ({"minReplicas": 1, "maxReplicas": 6}, 1, 6),
    ],
)
def test_elastic_bounds(tmp_path: Path, given: Object, low: int, high: int) -> None:
    elastic = manifest.load(write(tmp_path, pytorchjob(worker="true", workers=4, elasticPolicy=given))).job.elastic
    assert elastic is not None
    assert (elastic["minReplicas"], elastic["maxReplicas"]) == (low, high)


def test_generated_name(tmp_path: Path) -> None:
    document = pytorchjob("true") | {"metadata": {"generateName": "demo-"}}
    names = {manifest.load(write(tmp_path, document)).job.name for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("demo-") and len(name) == len("demo-") + 5 for name in names)


def test_one_job_among_other_documents(tmp_path: Path) -> None:
    file = write(tmp_path, {"kind": "Service", "metadata": {"name": "s"}}, "# nothing\n", pytorchjob("true"))
    found = manifest.load(file)
    assert (found.job.name, found.others) == ("demo", ("Service s",))


def test_several_jobs_need_a_name(tmp_path: Path) -> None:
    file = write(tmp_path, named("one"), {"kind": "List", "items": [named("two"), named("three")]})
    listed = "PyTorchJob one, PyTorchJob two, PyTorchJob three"
    with pytest.raises(Refused, match=rf"job.yaml: several jobs \({listed}\): choose one with --name"):
        manifest.load(file)
    found = manifest.load(file, "two")
    assert (found.job.name, found.others) == ("two", ("PyTorchJob one", "PyTorchJob three"))
    with pytest.raises(Refused, match=r"--name four must be one of the jobs in .*: one, two, three"):
        manifest.load(file, "four")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no PyTorchJob and no TrainJob in it, only nothing"),
        ("kind: Job\nmetadata: {name: a}", "no PyTorchJob and no TrainJob in it, only Job a"),
        ("kind: [", "line 1, column 8: not YAML"),
        ("kind: List\nitems: [1]", "not a Kubernetes object, but integer: '1'"),
        ("just a text", "not a Kubernetes object, but string: 'just a text'"),
        ("kind: PyTorchJob\napiVersion: kubeflow.org/v2", "'kubeflow.org/v2' is no version of PyTorchJob"),
        ("kind: PyTorchJob\napiVersion: kubeflow.org/v1\nspec: 1", 'spec in body must be of type object: "integer"'),
        ("kind: PyTorchJob\napiVersion: kubeflow.org/v1\nspec: {}", "metadata.name: Required value"),
        (
            "kind: PyTorchJob\napiVersion: kubeflow.org/v1\nmetadata: {name: a}\nspec: {pytorchReplicaSpecs: {}}",
            "PyTorchJob a has no replicas",
        ),
    ],
)
def test_refuses_other_files_in_a_sentence(tmp_path: Path, text: str, message: str) -> None:
    ended = run_script(write(tmp_path, text))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("torchtally local: ")
    assert message in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_date_is_text(tmp_path: Path) -> None:
    file = write(tmp_path, yaml.safe_dump(pytorchjob("true")).replace("- 'true'", "- 2026-01-02"))
    assert "2026-01-02\n" in Path(file).read_text()
    assert manifest.load(file).job.pods[0].container["command"][-1] == "2026-01-02"


def test_refuses_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"none.yaml: No such file or directory"):
        manifest.load(str(tmp_path / "none.yaml"))
