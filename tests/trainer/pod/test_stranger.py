"""A stranger who is no pod of the job, at another address of this machine, reaches none of its ports."""

import contextlib
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import launched
import psutil
import pytest
import ranks

ELSEWHERE = "127.0.0.2"  # another address of this machine, as that of its LAN is


@pytest.fixture
def environment() -> dict[str, str]:
    return launched.environment(**launched.STRICT)


def listening(process: psutil.Process) -> list[tuple[str, int]]:
    """Where the process and its children listen, on whatever network."""
    found = []
    for each in launched.family(process.pid):
        with_ports = (each for each in each.net_connections("inet") if each.status == psutil.CONN_LISTEN)
        found += [(each.laddr.ip, each.laddr.port) for each in with_ports]
    return found


def is_open(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=10).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_stranger_at_another_address_reaches_no_port_of_a_job(environment: dict[str, str], tmp_path: Path) -> None:
    """Three pods with a parameter server, in the middle of their training by RPC."""
    output = ["--output", str(tmp_path / "output")]
    with launched.job(environment, tmp_path, 3) as job:
        pods = job.all(["run", "parameter-server", "--epochs", "100000", *output])
        launched.until("a step was made", lambda: pods[0].line().startswith("epoch "))
        found = [each for pod in pods for each in listening(psutil.Process(pod.process.pid))]
        assert len(found) >= 1 + 3 + 3  # the store, and gloo and RPC of each rank
        assert {address for address, _ in found} == {"127.0.0.1"}
        assert not [port for _, port in found if is_open(ELSEWHERE, port)]


@contextlib.contextmanager
def started(environment: dict[str, str], *command: str) -> Iterator[subprocess.Popen[bytes]]:
    entry = [sys.executable, "-c", launched.ENTRY, "run", *command]
    with subprocess.Popen(entry, env=environment, stdout=subprocess.DEVNULL) as pod:
        try:
            yield pod
        finally:
            launched.kill(pod.pid)


def test_an_elastic_job_on_one_machine_listens_on_loopback(environment: dict[str, str]) -> None:
    port = ranks.free_port()
    job = {"PET_NNODES": "2:2", "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": f"127.0.0.1:{port}"}
    with started({**environment, **job, "PET_RDZV_ID": "demo"}, "--", "true") as pod:
        launched.until("the store was there", lambda: is_open("127.0.0.1", port))
        assert {address for address, _ in listening(psutil.Process(pod.pid))} == {"127.0.0.1"}


def test_a_run_without_a_job_listens_on_loopback(
    environment: dict[str, str], fashion_mnist: Path, tmp_path: Path
) -> None:
    port = ranks.free_port()
    own = {"PET_NPROC_PER_NODE": "2", "TORCHTALLY_METRICS_PORT": str(port), "TORCHTALLY_DATA": str(fashion_mnist)}
    endless = ["--epochs", "100000", "--hidden", "8", "--output", str(tmp_path / "output")]
    with started({**environment, **own}, "fashion-mnist", *endless) as pod:
        launched.until("the metrics were there", lambda: is_open("127.0.0.1", port))
        assert urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=300).status == 200
        found = listening(psutil.Process(pod.pid))
        assert len(found) >= 1 + 2 + 1  # the store, gloo of each rank, and the metrics
        assert {address for address, _ in found} == {"127.0.0.1"}
        assert not is_open(ELSEWHERE, port)
