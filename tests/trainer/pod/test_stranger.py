"""What a stranger can do who is no pod of the job: what SECURITY.md says."""

import base64
import contextlib
import json
import os
import pickle
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import launched
import psutil
import pytest
import ranks
from torch.distributed import TCPStore

from torchtally.pod.failure import Kind

ELSEWHERE = "127.0.0.2"  # another address of this machine, as that of its LAN is

# With nothing but the address of the store.
RUN_BY_RPC = """
import os, sys
from datetime import timedelta
import torch.distributed as dist
from torch.distributed import autograd, rpc
from torch.distributed.rpc import api
theirs = dist.TCPStore("127.0.0.1", int(sys.argv[1]), None, False, timedelta(seconds=60), wait_for_workers=False)
mine = dist.HashStore()
for key in theirs.list_keys():
    if key.startswith("rpc_prefix_0/"):
        mine.set(key.removeprefix("rpc_prefix_0/"), theirs.get(key))
options = rpc.TensorPipeRpcBackendOptions(_transports=["uv"], _channels=["basic"])
os.environ["TP_SOCKET_IFNAME"] = "lo"
autograd._init(3)
api._init_rpc_states(rpc.TensorPipeAgent(mine, "stranger", 3, 4, options, {}, []))
rpc.rpc_sync("server", os.mkdir, (sys.argv[2],))
os._exit(0)
"""


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


def heard(pod: launched.Pod, text: str) -> None:
    launched.until(f"{text!r} was said", lambda: text in pod.errors)


@pytest.fixture
def server_job(environment: dict[str, str], tmp_path: Path) -> Iterator[tuple[launched.Job, list[launched.Pod]]]:
    """Three pods with a parameter server, in the middle of their training by RPC."""
    output = ["--output", str(tmp_path / "output")]
    with launched.job(environment, tmp_path, 3) as job:
        pods = [job.start(rank, ["run", "parameter-server", "--epochs", "100000", *output]) for rank in range(3)]
        heard(pods[0], "the table by rpc")
        launched.until("a step was made", lambda: pods[0].line().startswith("epoch "))
        yield job, pods


def test_a_stranger_at_another_address_reaches_no_port(server_job: tuple[launched.Job, list[launched.Pod]]) -> None:
    job, pods = server_job
    found = [each for pod in pods for each in listening(psutil.Process(pod.process.pid))]
    assert len(found) >= 1 + 3 + 3  # the store, and gloo and RPC of each rank
    assert {address for address, _ in found} == {"127.0.0.1"}
    assert not [port for _, port in found if is_open(ELSEWHERE, port)]

    # One who does reach them:
    store = TCPStore("127.0.0.1", int(job.port), None, False, timedelta(seconds=60), wait_for_workers=False)
    assert len(store.list_keys()) > 30
    mark = job.folder / "mark"
    stranger = subprocess.run([sys.executable, "-c", RUN_BY_RPC, job.port, str(mark)], timeout=launched.LIMIT)
    assert (stranger.returncode, mark.exists()) == (0, True)
    store.set(f"torchtally/first/{int(Kind.KNOWN)}", json.dumps([1, Kind.KNOWN, 3, "the stranger says so"]))
    store.add("torchtally/failures", 1)
    heard(pods[0], "the stranger says so")
    for pod in pods:
        assert pod.wait() > 0


class Command:
    """What an unpickler runs."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._mark),)


def test_the_agents_of_an_elastic_job_unpickle_what_a_stranger_puts_into_their_store(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """torchrun's own rendezvous does."""
    port, mark = ranks.free_port(), tmp_path / "mark"
    job = {"PET_NNODES": "2:2", "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": f"127.0.0.1:{port}"}
    entry = [sys.executable, "-c", launched.ENTRY, "run", "--", "true"]
    with subprocess.Popen(entry, env={**environment, **job, "PET_RDZV_ID": "demo"}, stderr=subprocess.DEVNULL) as pod:
        try:
            launched.until("the store was there", lambda: is_open("127.0.0.1", port))
            assert {address for address, _ in listening(psutil.Process(pod.pid))} == {"127.0.0.1"}
            store = TCPStore("127.0.0.1", port, None, False, timedelta(seconds=60), wait_for_workers=False)
            launched.until("the pod has joined", lambda: store.check(["torch.rendezvous.demo"]))
            store.set("torch.rendezvous.demo", base64.b64encode(pickle.dumps(Command(mark))))
            launched.until("the command was run", mark.exists)
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):  # it has made the pod fail
                launched.kill(pod.pid)


def test_a_run_without_a_job_listens_on_loopback(
    environment: dict[str, str], fashion_mnist: Path, tmp_path: Path
) -> None:
    port = ranks.free_port()
    own = {"PET_NPROC_PER_NODE": "2", "TORCHTALLY_METRICS_PORT": str(port), "TORCHTALLY_DATA": str(fashion_mnist)}
    endless = ["--epochs", "100000", "--hidden", "8", "--output", str(tmp_path / "output")]
    entry = [sys.executable, "-c", launched.ENTRY, "run", "fashion-mnist", *endless]
    with subprocess.Popen(entry, env={**environment, **own}, stdout=subprocess.DEVNULL) as pod:
        try:
            launched.until("the metrics were there", lambda: is_open("127.0.0.1", port))
            assert urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=300).status == 200
            found = listening(psutil.Process(pod.pid))
            assert len(found) >= 1 + 2 + 1  # the store, gloo of each rank, and the metrics
            assert {address for address, _ in found} == {"127.0.0.1"}
            assert not is_open(ELSEWHERE, port)
        finally:
            launched.kill(pod.pid)
