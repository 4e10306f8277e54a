"""What PyTorchJob injects, and every contradiction in it as one sentence that names variables and values."""

from dataclasses import replace
from typing import Any

import pytest

from torchtally.environment import Job, Patience, Places
from torchtally.errors import Refused

# One worker of 1 + 3 pods, as the training operator 1.9 makes it.
WORKER = {
    "MASTER_ADDR": "demo-master-0",
    "PET_MASTER_ADDR": "demo-master-0",
    "MASTER_PORT": "23456",
    "PET_MASTER_PORT": "23456",
    "WORLD_SIZE": "4",
    "RANK": "2",
    "PET_NODE_RANK": "2",
    "PET_NPROC_PER_NODE": "1",
    "PET_NNODES": "4",
    "PYTHONUNBUFFERED": "1",
}
ELASTIC = {
    "PET_RDZV_BACKEND": "c10d",
    "PET_RDZV_ENDPOINT": "demo-worker-0:23456",
    "PET_NNODES": "1:3",
    "PET_MAX_RESTARTS": "10",
    "PET_NPROC_PER_NODE": "2",
}


JOB = Job(min_nodes=4, max_nodes=4, node_rank=2, master=("demo-master-0", 23456), processes=1, in_cluster=True)
TWINS = ("MASTER_ADDR", "MASTER_PORT", "RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_NODE_RANK")


@pytest.mark.parametrize(
    ("environment", "job"),
    [
        ({"PATH": "/bin"}, Job(processes="auto", in_cluster=False)),
        (WORKER, JOB),
        # Either of two names is enough.
        ({name: value for name, value in WORKER.items() if name not in TWINS[:3]}, JOB),
        ({name: value for name, value in WORKER.items() if name not in TWINS[3:]}, JOB),
        ({**WORKER, "PET_NPROC_PER_NODE": "2", "WORLD_SIZE": "8"}, replace(JOB, processes=2)),
        # The operator counts a word as one process.
        *(({**WORKER, "PET_NPROC_PER_NODE": word}, replace(JOB, processes=word)) for word in ("auto", "cpu", "gpu")),
    ],
)
def test_what_a_job_s_environment_means(environment: dict[str, str], job: Job) -> None:
    assert Job.from_env(environment) == job


def test_an_elastic_job() -> None:
    job = Job.from_env(ELASTIC)
    assert (job.min_nodes, job.max_nodes, job.elastic, job.processes) == (1, 3, True, 2)


@pytest.mark.parametrize(
    ("base", "change", "named"),
    [
        (WORKER, {"RANK": "4", "PET_NODE_RANK": "4"}, ["RANK=4", "WORLD_SIZE=4"]),
        (
            WORKER,
            {"WORLD_SIZE": "8", "RANK": "5", "PET_NODE_RANK": "5", "PET_NPROC_PER_NODE": "2"},
            ["RANK=5", "PET_NNODES=4"],
        ),
        (WORKER, {"PET_NPROC_PER_NODE": "2"}, ["WORLD_SIZE=4", "PET_NNODES=4", "PET_NPROC_PER_NODE=2", "8"]),
        (WORKER, {"WORLD_SIZE": "four"}, ["WORLD_SIZE='four'", "whole number"]),
        (WORKER, {"RANK": "-1", "PET_NODE_RANK": "-1"}, ["RANK='-1'"]),
        (WORKER, {"MASTER_PORT": "65536", "PET_MASTER_PORT": "65536"}, ["MASTER_PORT='65536'", "65535"]),
        (WORKER, {"PET_MASTER_PORT": "23457"}, ["MASTER_PORT=23456", "PET_MASTER_PORT=23457"]),
        (WORKER, {"PET_MASTER_ADDR": "other"}, ["MASTER_ADDR=demo-master-0", "PET_MASTER_ADDR=other"]),
        (WORKER, {"PET_NODE_RANK": "1"}, ["RANK=2", "PET_NODE_RANK=1"]),
        (WORKER, {"PET_NPROC_PER_NODE": "many"}, ["PET_NPROC_PER_NODE='many'", "auto"]),
        (WORKER, {"PET_NPROC_PER_NODE": "0"}, ["PET_NPROC_PER_NODE='0'"]),
        (WORKER, {"PET_NNODES": None}, ["WORLD_SIZE=4", "PET_NNODES"]),
        (WORKER, {"MASTER_ADDR": None, "PET_MASTER_ADDR": None}, ["PET_NNODES=4", "MASTER_ADDR"]),
        (WORKER, {"RANK": None, "PET_NODE_RANK": None}, ["PET_NNODES=4", "RANK"]),
        (WORKER, {"PET_RDZV_ENDPOINT": "demo-worker-0:23456"}, ["PET_RDZV_ENDPOINT=demo-worker-0:23456", "RANK=2"]),
        (WORKER, {"PET_NNODES": "1:4"}, ["PET_NNODES=1:4", "RANK=2"]),
        (WORKER, {"PET_NNODES": "²"}, ["PET_NNODES='²'"]),
        (ELASTIC, {"PET_NNODES": "3:1"}, ["PET_NNODES='3:1'"]),
        (ELASTIC, {"PET_NNODES": "a:b"}, ["PET_NNODES='a:b'"]),
        (ELASTIC, {"PET_NNODES": "0:2"}, ["PET_NNODES='0:2'"]),
        (ELASTIC, {"PET_RDZV_ENDPOINT": ""}, ["PET_RDZV_ENDPOINT"]),
        (ELASTIC, {"PET_RDZV_ENDPOINT": "demo-worker-0:http"}, ["PET_RDZV_ENDPOINT='demo-worker-0:http'"]),
        (ELASTIC, {"PET_MAX_RESTARTS": "-2"}, ["PET_MAX_RESTARTS='-2'"]),
    ],
)
def test_a_contradiction_names_variables_and_values(
    base: dict[str, str], change: dict[str, Any], named: list[str]
) -> None:
    with pytest.raises(Refused) as refused:
        Job.from_env({name: value for name, value in {**base, **change}.items() if value is not None})
    assert "\n" not in str(refused.value)
    for each in named:
        assert each in str(refused.value)


def test_a_container_that_was_given_gpus_asked_for_them() -> None:
    assert Places.from_env({}).device == "auto"
    assert Places.from_env({"NVIDIA_VISIBLE_DEVICES": "void"}).device == "auto"
    assert Places.from_env({"NVIDIA_VISIBLE_DEVICES": "all"}).device == "cuda"
    assert Places.from_env({"NVIDIA_VISIBLE_DEVICES": "all", "TORCHTALLY_DEVICE": "cpu"}).device == "cpu"
    with pytest.raises(Refused, match="TORCHTALLY_DEVICE='gpu'"):
        Places.from_env({"TORCHTALLY_DEVICE": "gpu"})


def test_the_patience_of_a_pod_is_a_number_of_seconds() -> None:
    assert Patience.from_env({}) == Patience()
    assert Patience.from_env({"TORCHTALLY_GRACE_SECONDS": "0.5"}) == Patience(grace=0.5)
    for wrong in ("long", "1"):
        with pytest.raises(Refused, match=f"TORCHTALLY_SILENCE_SECONDS='{wrong}' must be a number of seconds from 2"):
            Patience.from_env({"TORCHTALLY_SILENCE_SECONDS": wrong})
