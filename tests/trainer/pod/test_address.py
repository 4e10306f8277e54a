"""The addresses on which a pod listens, in a network namespace that looks like a pod's."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torchtally.environment import Job
from torchtally.pod import address

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
POD, SECONDARY = "10.1.2.3", "192.168.9.9"
ENTER = f"""
ip link set lo up
ip address add {POD}/24 dev lo
ip address add {SECONDARY}/24 dev lo
hostname demo-master-0
mount --bind "$0" /etc/hosts
exec "$@"
"""
ASK = """
import json, sys
from torchtally.pod import address
def where(listener):
    return listener and listener.getsockname()[0]
print(json.dumps({
    "store": [where(address.listener(host, 0, count)) for host, count in json.loads(sys.argv[1])],
    "metrics": address.of_metrics(),
}))
"""


def asked(folder: Path, jobs: list[tuple[str, int]], hosts: str = f"{POD} demo-master-0", **env: str) -> dict[str, Any]:
    """Where the pod demo-master-0 listens in jobs of so many pods, by the address that they know it by."""
    if not shutil.which("unshare") or not shutil.which("ip"):
        pytest.skip("no unshare or no ip on PATH")
    file = folder / "hosts"
    file.write_text(f"127.0.0.1 localhost\n{hosts}\n")
    enter = ["unshare", "--net", "--uts", "--mount", "--map-root-user"]
    if subprocess.run([*enter, "true"], capture_output=True).returncode:
        pytest.skip("this machine allows no namespaces")
    ask = [sys.executable, "-c", ASK, json.dumps(jobs)]
    command = [*enter, "sh", "-ec", ENTER, str(file), *ask]
    answer = subprocess.run(
        command, capture_output=True, text=True, check=True, env={"PATH": "/usr/sbin:/usr/bin", **env}
    )
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def test_a_pod_listens_on_the_address_of_its_service(tmp_path: Path) -> None:
    """And not on a secondary network, to which no NetworkPolicy applies."""
    known = ["demo-master-0", "demo-master-0.demo", POD]  # as a PyTorchJob's, a TrainJob's, and other pods know it
    found = asked(tmp_path, [(host, 2) for host in known], PET_MASTER_ADDR="demo-master-0", PET_MASTER_PORT="23456")
    assert found == {"store": [POD] * 3, "metrics": ["127.0.0.1", POD]}


def test_one_pod_alone_and_pods_on_one_machine_listen_on_loopback(tmp_path: Path) -> None:
    found = asked(tmp_path, [("demo-master-0", 1), ("127.0.0.1", 4), ("127.0.0.9", 4)])
    assert found == {"store": ["127.0.0.1", "127.0.0.1", "127.0.0.9"], "metrics": ["127.0.0.1"]}


def test_a_pod_listens_on_all_addresses_where_others_may_know_it_by_any(tmp_path: Path) -> None:
    several = f"{POD} demo-master-0\n{SECONDARY} demo-master-0"
    assert asked(tmp_path, [("demo-master-0", 2)], several)["store"] == [None]
    # Names of the pod itself, an address that is translated to its own, and a name that is not known yet.
    unclear = ["localhost", "demo-master-0", "10.9.9.9", "other.invalid"]
    found = asked(tmp_path, [(host, 2) for host in unclear], "127.0.1.1 demo-master-0")
    assert found["store"] == [None] * 4


def test_metrics_listen_where_they_are_told(tmp_path: Path) -> None:
    assert asked(tmp_path, [], TORCHTALLY_METRICS_ADDRESS="0.0.0.0")["metrics"] == ["0.0.0.0"]


@pytest.mark.parametrize(
    ("job", "interface"),
    [
        (Job(), LOOPBACK),
        (Job(max_nodes=4, master=("127.0.0.1", 23456), in_cluster=True), LOOPBACK),
        (Job(max_nodes=4, master=("demo-master-0", 23456), in_cluster=True), None),
        (Job(max_nodes=4, elastic=True, in_cluster=True), LOOPBACK),
    ],
)
def test_gloo_and_rpc_listen_on_loopback_if_all_pods_do(
    job: Job, interface: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PET_RDZV_ENDPOINT", "127.0.0.1:29400")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setenv("TP_SOCKET_IFNAME", "net1")  # as the user has chosen
    address.keep_on_loopback(job)
    assert os.environ.get("GLOO_SOCKET_IFNAME") == interface
    assert os.environ["TP_SOCKET_IFNAME"] == "net1"
    os.environ.pop("GLOO_SOCKET_IFNAME", None)
