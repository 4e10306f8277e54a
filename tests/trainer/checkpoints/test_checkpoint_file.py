"""Checkpoints under all that happens to files: the newest whole one loads, whatever lies beside it."""

import os
import random
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from torchtally.checkpoints import checkpoint_file
from torchtally.errors import Refused


def state(number: int) -> checkpoint_file.State:
    return {"number": number, "weights": torch.full((3000,), float(number)), "words": [1 << 60, -1], "text": "ü"}


def saved(folder: Path, *numbers: int, keep: int = 2, best: str | None = None) -> list[str]:
    for number in numbers:
        checkpoint_file.save(folder, 1, number, state(number), keep, best)
    return sorted(path.name for path in folder.iterdir())


def newest(folder: Path) -> tuple[int | None, list[str]]:
    found = checkpoint_file.newest(folder)
    if found.payload is None:
        return None, found.skipped
    loaded = checkpoint_file.load(found.payload)
    torch.testing.assert_close(loaded["weights"], torch.full((3000,), float(loaded["number"])), rtol=0, atol=0)
    return loaded["number"], found.skipped


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    best = checkpoint_file.file_name(1, 2)
    assert saved(tmp_path, 1, 2, 9, 10, 100, best=best) == [
        best,
        checkpoint_file.file_name(1, 10),
        checkpoint_file.file_name(1, 100),
    ]
    assert newest(tmp_path) == (100, [])
    checkpoint_file.save(tmp_path, 2, 0, state(5), 2)  # a later epoch, though fewer samples of it
    assert newest(tmp_path) == (5, [])


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flip(data: bytes) -> bytes:
    at = len(data) // 3
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("harm", "what"),
    [(cut, "cut off"), (lambda data: data[:-1], "cut off"), (lambda data: b"", "empty"), (flip, "damaged")],
)
def test_a_damaged_file_is_said_and_the_one_before_it_loads(tmp_path: Path, harm: object, what: str) -> None:
    saved(tmp_path, 1, 2, 3, keep=3)
    for number in (2, 3):
        path = tmp_path / checkpoint_file.file_name(1, number)
        path.write_bytes(harm(path.read_bytes()))  # type: ignore[operator]
    number, skipped = newest(tmp_path)
    assert number == 1
    assert [f"{checkpoint_file.file_name(1, 3)}: it is {what}" in skipped[0], len(skipped)] == [True, 2]


@pytest.mark.parametrize("keep", [1, 2])
def test_what_is_saved_after_damaged_ones_were_skipped_stays(tmp_path: Path, keep: int) -> None:
    saved(tmp_path, 1, 3, 4, 5, keep=4)
    for number in (3, 4, 5):
        (tmp_path / checkpoint_file.file_name(1, number)).write_bytes(b"")
    for number in (1, 2):
        saved(tmp_path, number, keep=keep)
        assert newest(tmp_path)[0] == number


def test_a_checkpoint_of_another_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    path = tmp_path / checkpoint_file.file_name(1, 2)
    path.write_bytes(b"whatever it may be" * 10 + b"torchtally-checkpoint-1\n")
    told = r"position-0000000000000000002\.checkpoint was written by another version of torchtally"
    with pytest.raises(Refused, match=told):
        checkpoint_file.newest(tmp_path)
    assert path.exists()


def test_what_is_no_file_is_skipped_and_stays(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    folder, pipe = (tmp_path / checkpoint_file.file_name(1, number) for number in (2, 3))
    folder.mkdir()
    os.mkfifo(pipe)
    assert newest(tmp_path) == (1, [f"checkpoint {path}: it is not a file" for path in (pipe, folder)])
    saved(tmp_path, 4, 5, 6, keep=1)
    assert newest(tmp_path) == (6, [])
    assert folder.exists()


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "my.checkpoint").write_text("mine, too")
    saved(tmp_path, 1, 2, 3, keep=1)
    assert newest(tmp_path) == (3, [])
    assert {"notes.txt", "my.checkpoint"} < {path.name for path in tmp_path.iterdir()}


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    checkpoint_file.save(tmp_path, 1, 1, {"model": nn.Linear(1, 1)}, 1)
    payload = checkpoint_file.newest(tmp_path).payload
    assert payload is not None
    with pytest.raises(Exception, match="Weights only load failed"):
        checkpoint_file.load(payload)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Path:
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root may mount a file system of its own")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    return folder


def test_a_full_disk_leaves_what_was_there(tiny_disk: Path) -> None:
    try:
        saved(tiny_disk, 1)
        with pytest.raises(OSError):
            checkpoint_file.save(tiny_disk, 1, 2, {"weights": torch.zeros(30000)}, 2)
        assert [path.name for path in tiny_disk.iterdir()] == [checkpoint_file.file_name(1, 1)]
        assert newest(tiny_disk) == (1, [])
    finally:
        subprocess.run(["umount", tiny_disk], check=True)


@pytest.mark.parametrize("kills", [100, pytest.param(1000, marks=pytest.mark.nightly)])
def test_kills_lose_nothing_that_was_reported(tmp_path: Path, kills: int) -> None:
    """Each time a process saves on and on, says so, and is killed at some moment of it."""
    chance = random.Random(1)
    reported, halves = 0, 0
    for _ in range(kills):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            number = reported
            while True:
                number += 1
                checkpoint_file.save(tmp_path, 1, number, state(number), 2)
                os.write(writer, b"%019d\n" % number)
        os.close(writer)
        assert select.select([reader], [], [], 60)[0], "nothing is saved"
        # Not for luck: any moment will do, and all of them do.
        time.sleep(chance.random() * 0.004)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(reader, "rb") as lines:
            reported = int(lines.read().splitlines()[-1])
        halves += any(path.name.startswith(".") for path in tmp_path.iterdir())
        number, skipped = newest(tmp_path)
        assert skipped == []
        assert number in (reported, reported + 1)  # one more may have been done and not yet said
        reported = number
        assert not any(path.name.startswith(".") for path in tmp_path.iterdir())
    assert halves > kills / 10, "hardly a kill came while a file was written"
