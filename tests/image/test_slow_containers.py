"""A pod that something slows down is named, with what is slow: real pods. On a cluster, one whose CPUs are slowed."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pods import Pod, Start
from test_runs import member
from testcontainers.core.network import Network

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

LIMIT = 240  # seconds until a pod is named
CPUS = {"cpu_period": 100_000, "cpu_quota": 60_000}  # of each pod: all have the same, whatever the machine has
SLOW = "demo-worker-1"
SCRIPT = Path(__file__).parents[1] / "helpers/slowed.py"


@pytest.fixture
def pods(start: Start, network: Network) -> Iterator[Callable[..., list[Pod]]]:
    def started(**more: str) -> list[Pod]:
        names = ["demo-master-0", "demo-worker-0", SLOW]
        return [
            start(
                *("run", "/files/slowed.py"),
                env=member(rank, len(names)) | {"TORCHTALLY_PROGRESS_SECONDS": "1", **more},
                volumes=[(str(SCRIPT), "/files/slowed.py", "ro")],
                network=network,
                network_aliases=[name],
                hostname=name,
                **CPUS,
            )
            for rank, name in enumerate(names)
        ]

    yield started


def go(pods: list[Pod]) -> None:
    for pod in pods:
        assert pod.container.exec(["touch", "/tmp/go"]).exit_code == 0


def events(pod: Pod, kind: str) -> list[dict[str, Any]]:
    lines = [line.partition("TORCHTALLY-EVENT ")[2] for line in pod.stdout.splitlines()]
    return [event for line in lines if line and (event := json.loads(line))["event"] == kind]


def until(pods: list[Pod], condition: Callable[[], object]) -> None:
    ends = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < ends, [(pod.stdout[-3000:], pod.stderr[-1000:]) for pod in pods]
        time.sleep(0.5)


def trains(pods: list[Pod]) -> None:
    go(pods)
    until(pods, lambda: events(pods[0], "progress"))


def named(pods: list[Pod], loses_in: str) -> None:
    def found() -> bool:
        reported = events(pods[0], "straggler")
        return bool(reported) and (reported[-1]["slow"], reported[-1]["loses_in"]) == (SLOW, loses_in)

    until(pods, found)
    assert f"{SLOW} (rank 2) is slower than the other pods: its " in pods[0].stderr


def throttle(pod: Pod) -> None:
    pod.container.get_wrapped_container().update(cpu_period=100_000, cpu_quota=5_000)


def test_a_pod_whose_data_is_slow(pods: Callable[..., list[Pod]]) -> None:
    started = pods()
    trains(started)
    assert started[2].container.exec(["touch", "/tmp/slow"]).exit_code == 0
    named(started, "data_wait")


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("tc"), reason="tc in the namespace of a pod needs root")
def test_a_pod_whose_link_is_delayed(pods: Callable[..., list[Pod]]) -> None:
    started = pods()
    trains(started)
    container = started[2].container.get_wrapped_container()
    container.reload()
    inside = ["nsenter", "--net", "--target", str(container.attrs["State"]["Pid"])]
    device = ["tc", "qdisc", "add", "dev", "eth0", "root"]
    if subprocess.run([*inside, *device, "netem", "delay", "100ms"], capture_output=True).returncode:
        # A kernel without netem: at this rate, a packet of 100 bytes takes 50 ms.
        rate = ["tbf", "rate", "16kbit", "burst", "1600", "latency", "5s"]
        subprocess.run([*inside, *device, *rate], check=True)
    named(started, "communication")


def test_a_job_refuses_to_start_with_a_throttled_pod(pods: Callable[..., list[Pod]]) -> None:
    started = pods(TORCHTALLY_PREFLIGHT="refuse", TORCHTALLY_NODE="node-7")
    until(started, lambda: all("is pod " in each.stderr for each in started))
    throttle(started[2])
    go(started)
    assert [pod.wait() for pod in started] == [2, 2, 2], started[0].stderr
    for pod in started:
        assert "TORCHTALLY_PREFLIGHT=refuse does not start with it" in pod.stderr
        assert f"{SLOW} on node node-7 computes " in pod.stderr  # on a busy machine, another one may be slow as well
