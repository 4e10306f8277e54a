"""Pods as processes: nothing is left of them, and each has its share of the machine."""

import os
import pty
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from launched import until
from livejobs import run
from localjobs import (
    LIMIT,
    RUN_LOCAL,
    Object,
    command,
    container,
    load,
    pod_spec,
    pytorchjob,
    read,
    run_script,
    start_script,
    write,
)

from torchtally.local import machine

LOOP = "while :; do sleep 0.05; done"


def script(folder: Path, then: str, first: str = "") -> str:
    """A pod with a child, a child's child, and one that left its session and its parent."""
    return (
        f"{first}\nsleep 1000 & (setsid sleep 1000 & echo $! >>{folder}/pids)\n"
        f"echo $! $BASHPID >>{folder}/pids; echo up; {then}"
    )


def family(folder: Path) -> list[int]:
    return [int(pid) for pid in (folder / "pids").read_text().split()]


def alive(pids: list[int]) -> list[int]:
    found = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
    return found


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_all_pods_and_what_they_started(tmp_path: Path, number: signal.Signals, status: int) -> None:
    pod = script(tmp_path, LOOP, first="trap 'echo asked to end; exit 0' TERM")
    runner = start_script(write(tmp_path, pytorchjob(pod, pod, workers=2)))
    read(runner, *(f"[demo-{name}] up" for name in ("master-0", "worker-0", "worker-1")))
    pids = family(tmp_path)
    assert alive(pids) == pids
    assert len(pids) == 9
    os.killpg(runner.pid, number)  # as a terminal does
    out, err = runner.communicate(timeout=LIMIT)
    assert runner.returncode == status
    assert out.splitlines().count("[demo-worker-1] asked to end") == 1
    assert f"PyTorchJob demo was interrupted by {number.name}." in err
    assert alive(pids) == []


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    job = pytorchjob(script(tmp_path, LOOP, first="trap 'echo asked to end' TERM"))
    pod_spec(job)["terminationGracePeriodSeconds"] = 10 * int(LIMIT)
    runner = start_script(write(tmp_path, job))
    read(runner, "up")
    pids = family(tmp_path)
    runner.send_signal(signal.SIGINT)
    read(runner, "asked to end")
    assert alive(pids)
    runner.send_signal(signal.SIGINT)
    runner.communicate(timeout=LIMIT)
    assert runner.returncode == 130
    assert alive(pids) == []


def test_nothing_outlives_a_runner_that_is_killed(tmp_path: Path) -> None:
    runner = start_script(write(tmp_path, pytorchjob(script(tmp_path, "sleep 1000"))))
    read(runner, "up")
    pids = family(tmp_path)
    runner.kill()
    runner.communicate(timeout=LIMIT)
    until("all processes are gone", lambda: not alive(pids))


def test_nothing_outlives_a_reader_that_is_gone(tmp_path: Path) -> None:
    pod = script(tmp_path, "while :; do echo more; sleep 0.05; done")
    runner = start_script(write(tmp_path, pytorchjob(pod)))
    read(runner, "up")
    assert runner.stdout is not None and runner.stderr is not None
    runner.stdout.close()
    runner.wait(timeout=LIMIT)
    assert runner.returncode == 1
    assert "Traceback" not in runner.stderr.read()
    runner.stderr.close()
    pids = family(tmp_path)
    until("all processes are gone", lambda: not alive(pids))


def test_a_job_outlives_a_full_disk(tmp_path: Path) -> None:
    manifest = write(tmp_path, pytorchjob(script(tmp_path, "echo one; sleep 0.1; echo two")))
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            command(manifest, "--log", "/dev/full", "--json"), stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert ended.returncode == 0, ended.stderr
    for where in ("standard output", "--log"):
        said = f"torchtally local: {where} cannot be written (No space left on device): the job continues"
        assert ended.stderr.count(said) == 1
    assert "Traceback" not in ended.stderr and "Exception ignored" not in ended.stderr


@pytest.mark.parametrize(("then", "code"), [("exit 0", 0), ("kill -9 0", 128 + 9)], ids=["ended", "killed-its-group"])
def test_nothing_outlives_its_pod(tmp_path: Path, then: str, code: int) -> None:
    ended = run(tmp_path, pytorchjob(script(tmp_path, then), policy="Never"))
    assert (ended.lines, ended.status["demo-master-0"].exit_code) == (["[demo-master-0] up"], code)
    assert alive(family(tmp_path)) == []


def test_lines_are_whole_and_bear_their_pod(tmp_path: Path) -> None:
    # Each line comes in two writes, from three pods at once.
    script = "for i in $(seq 300); do printf %s $HOSTNAME-; echo $i; done; printf 'no newline'"
    ended = run(tmp_path, pytorchjob(script, script, workers=2))
    for pod in ended.status:
        own = [line for line in ended.lines if line.startswith(f"[{pod}] ")]
        assert own == [*(f"[{pod}] {pod}-{i}" for i in range(1, 301)), f"[{pod}] no newline"]
    assert len(ended.lines) == 3 * 301


@pytest.mark.parametrize(
    ("script", "shown"),
    [
        pytest.param("echo one; echo two >&2; echo three", ["one", "two", "three"], id="errors-in-their-order"),
        pytest.param(
            r"printf ' 0%%\r 50%%\r100%%\n'; printf 'dos\r\n'; printf '0%%\r1%%'",
            ["100%", "dos", "1%"],
            id="the-last-state-of-a-progress-bar",
        ),
    ],
)
def test_what_is_shown(tmp_path: Path, script: str, shown: list[str]) -> None:
    assert run(tmp_path, pytorchjob(script)).lines == [f"[demo-master-0] {line}" for line in shown]


def test_bytes_that_are_no_text_are_passed_on(tmp_path: Path) -> None:
    ended = subprocess.run(
        command(write(tmp_path, pytorchjob(r"printf '\xff\xfe\n'"))), capture_output=True, check=True
    )
    assert ended.stdout == b"[demo-master-0] \xff\xfe\n"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({}, b"\x1b[36m[demo-master-0]\x1b[0m hello"), ({"NO_COLOR": "1"}, b"[demo-master-0] hello")],
)
def test_colour_on_a_terminal(tmp_path: Path, variables: dict[str, str], expected: bytes) -> None:
    leader, follower = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | variables
    job = command(write(tmp_path, pytorchjob("echo hello")))
    subprocess.run(job, stdout=follower, env=environment, check=True, timeout=300)
    os.close(follower)
    assert os.read(leader, 1000).rstrip() == expected
    os.close(leader)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system binds no process to cores")
def test_a_cpu_limit_is_a_number_of_cores(tmp_path: Path) -> None:
    available = os.sched_getaffinity(0)
    if len(available) < 2:
        pytest.skip("needs two cores")
    script = f"exec {sys.executable} -c 'import os; print(*os.sched_getaffinity(0))'"
    job = pytorchjob(script, script, workers=2)
    container(job)["resources"] = container(job, "Worker")["resources"] = {"limits": {"cpu": "1"}}
    cores = [set(line.split()[1:]) for line in sorted(run(tmp_path, job).lines)]
    assert [len(some) for some in cores] == [1, 1, 1]
    assert cores[0] != cores[1], "dealt in turn"
    assert set().union(*cores) <= {str(core) for core in available}


@pytest.mark.parametrize(
    ("limits", "cores"),
    [
        (["1", "1", "1"], [[0], [1], [2]]),
        (["500m", "2", "3"], [[0], [1, 2], [0, 1, 3]]),
        (["4", "64", None], [None, None, None]),  # all that there are
    ],
)
def test_cores_are_dealt_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: list[str | None], cores: list[list[int] | None]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    dealt = machine.cores([load(tmp_path, with_limit(limit)).pods[i] for i, limit in enumerate(limits)])
    assert [dealt.get(f"demo-worker-{i}") for i in range(3)] == cores


def with_limit(limit: str | None) -> Object:
    job = pytorchjob(worker="true", workers=3)
    if limit is not None:
        container(job, "Worker")["resources"] = {"limits": {"cpu": limit}}
    return job


def nvidia_smi(folder: Path, count: int) -> str:
    """A machine with so many GPUs, as far as PATH goes."""
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\nseq 0 {count - 1}\n")
    tool.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def gpu_job(count: int) -> Object:
    job = pytorchjob("echo GPUs $CUDA_VISIBLE_DEVICES.", "echo GPUs ${CUDA_VISIBLE_DEVICES-unset}.", workers=2)
    container(job, "Worker")["resources"] = {"limits": {"nvidia.com/gpu": count}}
    return job


def test_a_pod_sees_the_gpus_that_it_asked_for(tmp_path: Path) -> None:
    ended = run_script(write(tmp_path, gpu_job(2)), PATH=nvidia_smi(tmp_path, 4))
    assert sorted(ended.stdout.splitlines()) == [
        "[demo-master-0] GPUs .",
        "[demo-worker-0] GPUs 0,1.",
        "[demo-worker-1] GPUs 2,3.",
    ]
    assert "nvidia.com/gpu" not in ended.stderr


def test_gpus_that_are_not_there_are_said_once(tmp_path: Path) -> None:
    ended = run_script(write(tmp_path, gpu_job(2)), PATH=nvidia_smi(tmp_path, 0))
    assert ended.returncode == 0
    assert "[demo-worker-1] GPUs unset." in ended.stdout
    assert ended.stderr.count("4 nvidia.com/gpu (none here)") == 1
    ended = run_script(write(tmp_path, gpu_job(2)), PATH=nvidia_smi(tmp_path, 3))
    assert ended.stderr.count("4 nvidia.com/gpu (3 here)") == 1


def test_two_runs_never_share_a_port() -> None:
    mine = next(machine.ports())
    # Another run that would try the very same port first, and this one's neighbour next.
    other = f"""
import random, sys
sys.path.insert(0, {str(RUN_LOCAL.parent)!r})
from torchtally.local import machine
random.sample = lambda ports, count: [{mine}, *(port for port in ports if port != {mine})]
print(next(machine.ports()))
"""
    answer = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True, check=True)
    assert int(answer.stdout) in range(20000, 30000)
    assert int(answer.stdout) != mine


def test_ports_can_be_listened_on(tmp_path: Path) -> None:
    listen = "import os, socket; s = socket.create_server(('', int(os.environ['MASTER_PORT']))); print('listens')"
    call = "import os, socket; socket.create_connection((os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])))"
    master = f'{sys.executable} -c "{listen}; s.accept()"'
    worker = f'until {sys.executable} -c "{call}" 2>/dev/null; do sleep 0.1; done'
    ended = run(tmp_path, pytorchjob(master, worker, policy="Never"))
    assert ended.lines == ["[demo-master-0] listens"]


def test_working_directory(tmp_path: Path) -> None:
    job = pytorchjob("pwd", "pwd")
    container(job)["workingDir"] = str(tmp_path)
    container(job, "Worker")["workingDir"] = "/no/such/folder"
    assert sorted(run(tmp_path, job).lines) == [f"[demo-master-0] {tmp_path}", f"[demo-worker-0] {Path.cwd()}"]


def test_a_pod_reads_nothing(tmp_path: Path) -> None:
    job = command(write(tmp_path, pytorchjob("cat; echo read")))
    ended = subprocess.run(job, input="not for a pod", capture_output=True, text=True)
    assert ended.stdout == "[demo-master-0] read\n"
