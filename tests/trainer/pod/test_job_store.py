"""The store of a job."""

import subprocess
import sys

import launched
import pytest
import ranks
from torch.distributed import DistError, TCPStore

from torchtally.pod.failure import Failure, Kind
from torchtally.pod.job_store import JobStore

SERVER = """
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", int(sys.argv[1]), None, True, wait_for_workers=False)
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_store_that_does_not_answer_is_given_up() -> None:
    """As when its node has lost its power: nothing says so."""
    port = ranks.free_port()
    command = [sys.executable, "-c", SERVER, str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            store = JobStore(TCPStore("127.0.0.1", port, None, False, wait_for_workers=False), 2, timeout=5)
            assert store.post(1, Failure(Kind.KNOWN, 3, "it failed")) == 1
            assert store.first(Kind.KNOWN) == (1, Failure(Kind.KNOWN, 3, "it failed"))
            launched.stop(server.pid)  # and wait until it has stopped
            with pytest.raises(DistError, match="no answer within 5 s"):
                store.keys.check(["complete"])
        finally:
            server.kill()
