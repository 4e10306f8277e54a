"""A pod's ranks are forked from its agent, and are as if each had been started by itself."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import launched
import loky
import psutil
import pytest
import torch

from torchtally.errors import Refused
from torchtally.pod import prefork

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked on Linux alone")

# As the entry point does with a module of its own. What is forked from it has its `agent`.
ENTRY = """
import builtins, os, sys
from torchtally.pod import launch
builtins.agent = True
{}
command = [sys.executable, "-u", "-m", "rank_program", *sys.argv[1:]]
end = launch.launch(command, os.environ, lambda _: False, "rank_program")
if callable(end):
    sys.exit(end())
os._exit(end)
"""

# What befalls it right after it has forked its ranks.
THEN = """
import signal, time
from torchtally.pod import prefork, signals
fork = prefork.fork
def struck(*how):
    fork(*how)
    while len(set(signals.ranks())) < 2:  # each has to have a process group of its own
        time.sleep(0.01)
    {}
prefork.fork = struck
"""


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Any]:
    """Starts one with two ranks."""
    environment = launched.environment(PYTHONPATH=str(Path(__file__).parents[2] / "helpers"))
    del environment["OMP_NUM_THREADS"]
    with launched.job(environment, tmp_path, 1) as job:

        def start(*arguments: str, first: str = "", **more: str) -> launched.Pod:
            return job.start(0, list(arguments), ENTRY.format(first), PET_NPROC_PER_NODE="2", **more)

        yield start


def told(pod: launched.Pod) -> dict[str, dict[str, Any]]:
    """By rank, what both ranks say."""
    found = [json.loads(pod.line()) for _ in range(2)]
    return {each["rank"]: each for each in found}


@pytest.mark.cold  # OpenMP reads the environment where torch is imported
def test_ranks_are_forked_and_named_and_share_the_cpus(pod: Any) -> None:
    started = pod("pause", "$HOME $$")
    ranks = told(started)
    for rank in "01":
        assert ranks[rank]["forked"]
        assert ranks[rank]["name"] == f"rank {rank}"
        assert ranks[rank]["argv"] == ["pause", "$HOME $$"]
        assert ranks[rank]["group"] == ranks[rank]["pid"]
        assert ranks[rank]["threads"] == max(1, loky.cpu_count() // 2)
        assert psutil.Process(ranks[rank]["pid"]).ppid() == started.process.pid
    started.signal(signal.SIGTERM)
    assert started.wait() == 128 + signal.SIGTERM
    pids = [each["pid"] for each in ranks.values()]  # which whoever adopts them has to let go of
    launched.until("they are gone", lambda: not any(psutil.pid_exists(pid) for pid in pids))


def test_what_is_started_anew_is_an_ordinary_process(pod: Any) -> None:
    started = pod("pause once", PET_MAX_RESTARTS="1")
    first = told(started)
    os.kill(first["1"]["pid"], signal.SIGKILL)
    second = told(started)
    assert all(each["forked"] and each["restart"] == "0" for each in first.values())
    assert not any(each["forked"] for each in second.values())
    assert {each["restart"] for each in second.values()} == {"1"}
    assert started.wait() == 0


def test_the_users_number_of_threads_holds(pod: Any) -> None:
    assert [each["threads"] for each in told(pod("end", OMP_NUM_THREADS="2")).values()] == [2, 2]


def test_files_that_were_asked_for_get_what_ranks_print(pod: Any, tmp_path: Path) -> None:
    started = pod("end", PET_REDIRECTS="1", PET_LOG_DIR=str(tmp_path / "logs"))
    assert started.wait() == 0
    found = [json.loads(file.read_text()) for file in (tmp_path / "logs").rglob("stdout.log")]
    assert sorted(each["rank"] for each in found) == ["0", "1"]


def test_a_rank_that_dies_before_it_is_started_ends_the_pod(pod: Any) -> None:
    started = pod("pause", first=THEN.format("os.kill(max(signals.ranks()), signal.SIGKILL)"))
    assert started.wait() == 128 + signal.SIGKILL
    assert "rank 1 (demo-master-0) was ended by signal 9 (SIGKILL)" in started.message


def test_nothing_stays_behind_an_agent_that_dies_before_it_starts_them(pod: Any) -> None:
    strike = "print(*signals.ranks(), flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    started = pod("pause", first=THEN.format(strike))
    ranks = [int(pid) for pid in started.line().split()]
    assert started.wait() == -signal.SIGKILL
    assert len(ranks) == 2
    launched.until("they are gone", lambda: not any(psutil.pid_exists(pid) for pid in ranks))


def test_an_agent_that_fails_before_it_starts_them_ends(pod: Any) -> None:
    started = pod("pause", first="launch._silence_agent = lambda: 1 / 0")
    assert started.wait() == 1
    assert "ZeroDivisionError" in started.errors


def test_without_a_way_to_fork_they_are_ordinary_processes(pod: Any) -> None:
    started = pod("end", first="import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()")
    assert not any(each["forked"] for each in told(started).values())
    assert started.wait() == 0


@pytest.mark.cold
def test_what_is_forked_from_asks_no_gpu() -> None:
    """A process that has asked CUDA for GPUs may not be forked."""
    script = """
import torch
asked = []
for name in ("_cuda_getDeviceCount", "_cuda_init", "_cuda_isInBadFork"):
    old = getattr(torch._C, name, None)
    setattr(torch._C, name, lambda *how, name=name, old=old: (asked.append(name), old and old(*how))[1])
from torchtally.commands import evaluate, train
from torchtally.pod import device, launch, prefork
before = list(asked)
prefork.apart(lambda: device.count("auto", "auto", 4))
assert asked == before == [], (before, asked)
device.count("auto", "auto", 4)
assert asked or not torch.backends.cuda.is_built(), "the check cannot see what it looks for"
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_runs_apart_returns_or_refuses() -> None:
    def refuse() -> int:
        raise Refused("no such thing")

    assert prefork.apart(lambda: (1, torch.get_num_threads())) == (1, torch.get_num_threads())
    with pytest.raises(Refused, match="no such thing"):
        prefork.apart(refuse)
    with pytest.raises(RuntimeError, match="ended without an answer"):
        prefork.apart(lambda: os._exit(0))
