"""TrainJobs, and jobs inside other objects, as the local runner takes them."""

import copy
import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from localjobs import Object, pytorchjob, run_script, shell, write

from torchtally.errors import Refused
from torchtally.local import environment, manifest

RUNTIME: Object = {
    "apiVersion": "trainer.kubeflow.org/v1alpha1",
    "kind": "ClusterTrainingRuntime",
    "metadata": {"name": "team-torch"},
    "spec": {
        "mlPolicy": {"numNodes": 3, "torch": {"numProcPerNode": 2}},
        "template": {
            "spec": {
                "replicatedJobs": [
                    {"name": "dataset-initializer", "template": {}},
                    {
                        "name": "node",
                        "template": {
                            "spec": {
                                "backoffLimit": 1,
                                "template": {
                                    "spec": {
                                        "restartPolicy": "OnFailure",
                                        "containers": [
                                            {"name": "node", "image": "i", "env": [{"name": "A", "value": "1"}]}
                                        ],
                                    }
                                },
                            }
                        },
                    },
                ]
            }
        },
    },
}


def trainjob(script: str, **spec: Any) -> Object:
    trainer = {"command": ["bash", "-c", script], **spec.pop("trainer", {})}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "demo"},
        "spec": {"runtimeRef": {"name": "team-torch"}, "trainer": trainer, **spec},
    }


def test_the_nodes_have_what_kubeflow_trainer_gives_them(tmp_path: Path) -> None:
    found = manifest.load(write(tmp_path, RUNTIME, trainjob("true", trainer={"env": [{"name": "B", "value": "2"}]})))
    assert [pod.name for pod in found.job.pods] == ["demo-node-0-0", "demo-node-0-1", "demo-node-0-2"]
    assert environment.pod_environment(found.job, found.job.pods[1]) == {
        "A": "1",
        "B": "2",
        "PET_NNODES": "3",
        "PET_NPROC_PER_NODE": "2",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "demo-node-0-0",
        "PET_MASTER_PORT": "29500",
    }
    assert found.others == ()
    assert (
        "the replicated job dataset-initializer of ClusterTrainingRuntime team-torch does not run here"
        in found.warnings
    )


@pytest.mark.parametrize(
    ("trainer", "processes"),
    [
        ({}, "2"),
        ({"numProcPerNode": 4}, "4"),
        ({"numProcPerNode": "auto"}, "auto"),
        ({"numProcPerNode": "auto", "resourcesPerNode": {"limits": {"cpu": "2500m"}}}, "3"),
        ({"numProcPerNode": "auto", "resourcesPerNode": {"limits": {"cpu": 8, "nvidia.com/gpu": 1}}}, "auto"),
    ],
)
def test_processes_of_a_node(tmp_path: Path, trainer: Object, processes: str) -> None:
    assert manifest.load(write(tmp_path, RUNTIME, trainjob("true", trainer=trainer))).job.nproc_per_node == processes


def patch(pod: Object) -> Object:
    jobs = [{"name": "node", "template": {"spec": {"template": pod}}}]
    return {"trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": jobs}}}, "manager": "me"}


def test_what_the_job_changes_in_its_runtime(tmp_path: Path) -> None:
    changes = {
        "spec": {"serviceAccountName": "me", "containers": [{"name": "node", "env": [{"name": "A", "value": "9"}]}]}
    }
    for spec in (
        {"runtimePatches": [patch(changes)]},
        {"podTemplateOverrides": [{"targetJobs": [{"name": "node"}], **changes}]},
    ):
        job = manifest.load(write(tmp_path, RUNTIME, trainjob("true", **spec))).job
        assert environment.pod_environment(job, job.pods[0])["A"] == "9"
        assert job.pods[0].spec["serviceAccountName"] == "me" and job.pods[0].container["command"]


def test_a_runtime_that_is_not_in_the_file(tmp_path: Path) -> None:
    found = manifest.load(write(tmp_path, trainjob("true", trainer={"numNodes": 2})))
    assert [pod.name for pod in found.job.pods] == ["demo-node-0-0", "demo-node-0-1"]
    assert found.warnings == (
        "ClusterTrainingRuntime team-torch is not in the file: a runtime of one plain container takes its place",
    )


def misshapen() -> Iterator[tuple[list[Object], str]]:
    """Runtimes, changes of a runtime, and objects around a job, with the field that has another type or is missing."""
    for spec, sentence in (
        ({}, "ClusterTrainingRuntime team-torch is invalid: spec.template.spec.replicatedJobs: Required value"),
        ({"template": "x"}, "spec.template in body must be of type object"),
        ({"template": {"spec": {"replicatedJobs": [1]}}}, "spec.replicatedJobs[0] in body must be of type object"),
        ({**RUNTIME["spec"], "mlPolicy": {"numNodes": "2"}}, "spec.mlPolicy.numNodes in body must be of type integer"),
    ):
        yield [RUNTIME | {"spec": spec}, trainjob("true")], sentence
    for changes, sentence in (
        ({"runtimePatches": ["x"]}, "spec.runtimePatches[0] in body must be of type object"),
        ({"podTemplateOverrides": [{"targetJobs": ["node"]}]}, "targetJobs[0] in body must be of type object"),
    ):
        yield [RUNTIME, trainjob("true", **changes)], sentence
    for kind, spec, sentence in (
        ("AppWrapper", {"components": ["x"]}, "spec.components[0] in body must be of type object"),
        ("AppWrapper", {"resources": {"GenericItems": "x"}}, "spec.resources.GenericItems in body must be of type"),
        ("Experiment", {"trialTemplate": "x"}, "Experiment lost is invalid: spec.trialTemplate: Invalid value"),
        ("Experiment", {"parameters": ["rate"]}, "spec.parameters[0] in body must be of type object"),
    ):
        yield [{"kind": kind, "metadata": {"name": "lost"}, "spec": spec}], sentence


def test_what_is_not_valid_or_cannot_run(tmp_path: Path) -> None:
    mpi = copy.deepcopy(RUNTIME)
    mpi["spec"]["mlPolicy"] = {"mpi": {}}
    unnamed, twice = trainjob("true"), [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]
    del unnamed["metadata"]["name"]
    for documents, sentence in (
        (
            [mpi, trainjob("true")],
            "TrainJob demo cannot run here: its runtime has mlPolicy.mpi, and only mlPolicy.torch",
        ),
        ([RUNTIME, unnamed], "TrainJob is invalid: metadata.name: Required value"),
        ([RUNTIME, trainjob("true", runtimeRef={})], "TrainJob is invalid: spec.runtimeRef.name: Required value"),
        ([RUNTIME, trainjob("true", replicas=1)], 'unknown field "spec.replicas"'),
        (
            [RUNTIME, trainjob("true", trainer={"numNodes": "2"})],
            "spec.trainer.numNodes in body must be of type integer",
        ),
        ([RUNTIME, trainjob("true", trainer={"env": twice})], 'spec.trainer.env[1]: Duplicate value: {"name":"A"}'),
        ([trainjob("true") | {"apiVersion": "kubeflow.org/v1"}], "'kubeflow.org/v1' is no version of TrainJob"),
        *misshapen(),
    ):
        with pytest.raises(Refused) as refused:
            manifest.load(write(tmp_path, *documents))
        assert sentence in str(refused.value)


def test_nodes_run_restart_and_end_together(tmp_path: Path) -> None:
    seen = f"{tmp_path}/$HOSTNAME"
    once = f"[ -e {seen} ] && exit; touch {seen}; exit "
    ended = run_script(write(tmp_path, RUNTIME, trainjob("true")), "--json")
    outcome = json.loads(ended.stdout.splitlines()[-1])
    assert (ended.returncode, outcome["message"]) == (0, "TrainJob default/demo successfully completed.")
    document = trainjob(once + "$((PET_NODE_RANK == 1))", trainer={"numNodes": 2})
    assert run_script(write(tmp_path, RUNTIME, document)).returncode == 0  # the second node is tried once more
    ended = run_script(write(tmp_path, RUNTIME, trainjob("exit 3", trainer={"numNodes": 1})))
    assert ended.returncode == 1 and "reached the specified backoff limit" in ended.stderr


EXPERIMENT = {
    "apiVersion": "kubeflow.org/v1beta1",
    "kind": "Experiment",
    "metadata": {"name": "tune"},
    "spec": {
        "parameters": [
            {"name": "lr", "feasibleSpace": {"min": "0.01", "max": "0.1"}},
            {"name": "optimizer", "feasibleSpace": {"list": ["sgd", "adam"]}},
        ],
        "trialTemplate": {
            "trialParameters": [{"name": "rate", "reference": "lr"}, {"name": "kind", "reference": "optimizer"}],
            "trialSpec": {
                name: value
                for name, value in pytorchjob("echo ${trialParameters.rate} ${trialParameters.kind}").items()
                if name != "metadata"
            },
        },
    },
}


@pytest.mark.engine
def test_a_node_is_a_container_that_has_its_name_for_an_address(tmp_path: Path) -> None:
    name = f"tt{secrets.token_hex(3)}"
    script = "getent hosts $PET_MASTER_ADDR >/dev/null && echo $PET_NODE_RANK $PET_MASTER_ADDR"
    trainer = {"command": ["sh", "-c", script], "image": "debian:trixie-slim", "numNodes": 1}
    job = trainjob("", trainer=trainer) | {"metadata": {"name": name}}
    ended = run_script(write(tmp_path, RUNTIME, job), "--docker")
    assert (ended.returncode, ended.stdout) == (0, f"[{name}-node-0-0] 0 {name}-node-0-0\n"), ended.stderr


@pytest.mark.parametrize(
    "document",
    [
        {"kind": "AppWrapper", "spec": {"components": [{"template": pytorchjob("echo 0.01 sgd")}]}},
        {
            "kind": "AppWrapper",
            "spec": {"resources": {"GenericItems": [{"generictemplate": pytorchjob("echo 0.01 sgd")}]}},
        },
        {"kind": "Trial", "spec": {"runSpec": pytorchjob("echo 0.01 sgd")}},
        EXPERIMENT,
    ],
    ids=["AppWrapper", "AppWrapper before v1beta2", "Trial", "Experiment"],
)
def test_a_job_inside_another_object(tmp_path: Path, document: Object) -> None:
    job = manifest.load(write(tmp_path, document)).job
    assert job.name == ("tune" if document is EXPERIMENT else "demo")
    assert job.pods[0].container["command"] == shell("echo 0.01 sgd")["command"]


def test_an_empty_object_has_no_job(tmp_path: Path) -> None:
    for kind in ("AppWrapper", "Trial", "Experiment"):
        with pytest.raises(Refused, match="no PyTorchJob and no TrainJob in it"):
            manifest.load(write(tmp_path, yaml.safe_dump({"kind": kind, "spec": {}})))
