"""Of two starts that would write to one folder, one does; a lock never outlives the process that holds it."""

import errno
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Any

import checkpointed
import commands
import pytest
import ranks
from commands import TORCHTALLY
from launched import LIMIT

from torchtally.checkpoints import in_use
from torchtally.errors import Refused, Volume

POD = {"PET_MASTER_ADDR": "demo-master-0", "PET_MASTER_PORT": "23456"}


@contextmanager
def holder(folder: Path, **variables: str) -> Iterator[int]:
    """Another process that uses the folder, with a child that lives on, as a loader's worker does for a while."""
    reading, writing = os.pipe()
    if not (pid := os.fork()):
        os.environ.update({"HOSTNAME": "demo-master-0", **variables})
        in_use.hold(folder)
        child = os.fork()
        if child:
            os.write(writing, b"%d" % child)
        signal.pause()
    child = int(os.read(reading, 100))
    try:
        yield pid
    finally:
        for each in (pid, child):
            os.kill(each, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reading)
        os.close(writing)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PET_MASTER_ADDR", "PET_RDZV_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)


def holds(rank: int, world: int, store: Any, folder: Path) -> None:
    in_use.hold(folder)


@pytest.mark.usefixtures("alone")
def test_a_second_start_is_refused_until_the_first_has_died(tmp_path: Path) -> None:
    with holder(tmp_path) as pid:
        with pytest.raises(Refused, match=rf"is in use by demo-master-0 \(process {pid}, since 20.* UTC\): wait until"):
            in_use.hold(tmp_path)
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        in_use.hold(tmp_path)  # although its child lives
        in_use.hold(tmp_path)
        in_use.release(tmp_path)
        assert isinstance(ranks.run(1, holds, tmp_path)[0], Refused)  # there is one more use of it
        in_use.release(tmp_path)
        assert ranks.run(1, holds, tmp_path) == [None]


def test_a_pod_waits_for_an_earlier_one_of_its_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in POD.items():
        monkeypatch.setenv(name, value)
    with holder(tmp_path, **POD) as pid:
        with pytest.raises(Volume, match=r"is still in use by demo-master-0 .*, an earlier pod of this job"):
            in_use.hold(tmp_path, wait=0)
        Timer(0.5, os.kill, (pid, signal.SIGKILL)).start()
        in_use.hold(tmp_path)
        in_use.release(tmp_path)
    with holder(tmp_path, **POD):
        monkeypatch.setenv("PET_MASTER_ADDR", "another-master-0")
        with pytest.raises(Refused):
            in_use.hold(tmp_path)


def test_a_folder_that_cannot_be_locked_is_used_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def flock(file: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", flock)
    in_use.hold(tmp_path)
    in_use.release(tmp_path)
    assert "cannot be locked (Function not implemented): a second start in it is not noticed" in capsys.readouterr().err


@pytest.mark.usefixtures("alone")
def test_checkpoints_of_an_account_are_those_of_one_start(tmp_path: Path) -> None:
    with holder(tmp_path):
        for found in checkpointed.run(2, checkpointed.whole, tmp_path):
            assert found.code == 2 and f"{tmp_path} is in use by demo-master-0 (process " in found.message
    for found in checkpointed.run(2, checkpointed.whole, tmp_path):
        assert found.code == 0


def test_of_two_trainings_in_one_output_folder_the_second_is_refused(environment: dict[str, str]) -> None:
    own = {**environment, "PET_NPROC_PER_NODE": "2"}
    command = ["run", "fashion-mnist", "--epochs", "1000", "--hidden", "16"]
    first = subprocess.Popen(
        [*TORCHTALLY, *command], env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert first.stdout is not None
        while "TORCHTALLY-EVENT" not in (line := first.stdout.readline()) or '"begun"' not in line:
            assert line, first.communicate()
        second = commands.alone(own, command)
        assert second.returncode == 2, second.stderr
        assert f"{environment['TORCHTALLY_OUTPUT']}/checkpoints is in use by " in second.stderr
        assert "Traceback" not in second.stderr
    finally:
        first.terminate()
        first.communicate(timeout=LIMIT)
    assert first.returncode == 143
