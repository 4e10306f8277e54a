"""Runs of the image as Docker and the training operator start it."""

import signal
from pathlib import Path
from typing import Any

import pytest
from pods import Pod, Start
from testcontainers.core.network import Network
from testcontainers.core.wait_strategies import LogMessageWaitStrategy

pytestmark = pytest.mark.engine

SMALL = ("--batch-size", "1000", "--hidden", "16")
ONE_EPOCH = ("run", "fashion-mnist", "--epochs", "1", *SMALL)
FROM_DATA = {"TORCHTALLY_DATA": "/data"}
# What a restricted namespace allows, and a uid that it chose.
RESTRICTED: dict[str, Any] = {
    "user": "54321:0",
    "read_only": True,
    "tmpfs": ("/tmp",),
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges"],
}
CLUSTER = {"MASTER_ADDR": "demo-master-0", "MASTER_PORT": "23456", "PET_NPROC_PER_NODE": "1"}
CLUSTER |= {"PET_MASTER_ADDR": CLUSTER["MASTER_ADDR"], "PET_MASTER_PORT": CLUSTER["MASTER_PORT"]}


def member(rank: int, pods: int) -> dict[str, str]:
    """What the operator injects into the pod of this index."""
    numbers = {"RANK": rank, "PET_NODE_RANK": rank, "WORLD_SIZE": pods, "PET_NNODES": pods}
    return CLUSTER | {name: str(number) for name, number in numbers.items()}


def sentence(pod: Pod) -> str:
    """The one line for people on stderr of a pod that refused."""
    assert pod.wait() == 2
    (line,) = (line for line in pod.stderr.splitlines() if not line.startswith("TORCHTALLY-EVENT"))
    return line


def test_alone_and_restricted_it_trains_proves_and_can_verify_itself(start: Start, data: Path, tmp_path: Path) -> None:
    output = tmp_path / "output"
    output.mkdir()
    output.chmod(0o777)
    volumes = [(str(data), "/data", "ro"), (str(output), "/output", "rw")]
    pod = start(*ONE_EPOCH, env=FROM_DATA, volumes=volumes, **RESTRICTED)
    assert pod.wait() == 0, pod.stderr
    counts = {(tally["phase"], tally["rank"]): tally["consumed"] for tally in pod.tallies}
    assert counts == {("train", 0): 60000, ("train", "all"): 60000, ("test", 0): 10000, ("test", "all"): 10000}
    assert {(tally["lost"], tally["duplicated"]) for tally in pod.tallies} == {(0, 0)}
    assert sorted(path.name for path in output.iterdir()) == ["checkpoints", "model.pt", "proof.json", "run.json"]

    # As `helm test` calls it, but on a file.
    log = tmp_path / "pod.log"
    log.write_text(pod.stdout)
    verifier = start("verify", "/pod.log", entrypoint="torchtally", volumes=[(str(log), "/pod.log", "ro")])
    assert verifier.wait() == 0, verifier.stderr


def test_four_pods_share_the_samples(start: Start, network: Network, data: Path) -> None:
    pods = [
        start(
            *ONE_EPOCH,
            env=member(rank, 4) | FROM_DATA,
            volumes=[(str(data), "/data", "ro")],
            network=network,
            network_aliases=[f"demo-worker-{rank - 1}" if rank else "demo-master-0"],
        )
        for rank in range(4)
    ]
    assert [pod.wait() for pod in pods] == [0, 0, 0, 0], pods[0].stderr
    consumed = {t["rank"]: t["consumed"] for pod in pods for t in pod.tallies if t["phase"] == "train"}
    assert consumed == {0: 15000, 1: 15000, 2: 15000, 3: 15000, "all": 60000}
    assert ["model.pt" in pod.output() for pod in pods] == [True, False, False, False]


def test_sigterm_ends_a_training(start: Start, data: Path) -> None:
    pod = start("run", "fashion-mnist", "--epochs", "1000", *SMALL, env=FROM_DATA, volumes=[(str(data), "/data", "ro")])
    LogMessageWaitStrategy('"event":"epoch"').with_startup_timeout(120).wait_until_ready(pod.container)
    pod.container.get_wrapped_container().kill(signal.SIGTERM)
    assert pod.wait(seconds=20) == 128 + signal.SIGTERM


def test_sigterm_ends_the_wait_for_other_pods(start: Start) -> None:
    """torchrun installs its handlers late, and waits 15 minutes; as PID 1 it would not even die of the signal."""
    env = member(0, 2) | {"MASTER_ADDR": "localhost", "PET_MASTER_ADDR": "localhost"}
    pod = start("run", "fashion-mnist", env=env)
    LogMessageWaitStrategy('"event":"started"').with_startup_timeout(120).wait_until_ready(pod.container)
    pod.container.get_wrapped_container().kill(signal.SIGTERM)
    assert pod.wait(seconds=20) == 128 + signal.SIGTERM


def test_a_users_own_command_is_a_rank(start: Start) -> None:
    pod = start("run", "--", "python", "-c", "import os; print(*map(os.getenv, ('RANK', 'WORLD_SIZE', 'LOCAL_RANK')))")
    assert pod.wait() == 0
    assert pod.stdout == "0 1 0\n"


def test_a_contradiction_is_one_sentence(start: Start) -> None:
    said = sentence(start("run", "fashion-mnist", env={"RANK": "4", "WORLD_SIZE": "4"}))
    assert "RANK=4" in said
    assert "WORLD_SIZE=4" in said


def test_a_gpu_that_is_not_there_is_one_sentence(start: Start) -> None:
    said = sentence(start("run", "fashion-mnist", env={"TORCHTALLY_DEVICE": "cuda"}))
    assert "a GPU is requested and cannot be used" in said
