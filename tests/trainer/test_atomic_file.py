"""A file is whole or not there."""

import os
from pathlib import Path
from typing import IO

import pytest

from torchtally.atomic_file import clear, replace


def test_contents_take_the_place_of_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(b"old")
    assert replace(path, lambda file: file.write(b"new")) == path
    assert path.read_bytes() == b"new"
    assert [each.name for each in tmp_path.iterdir()] == ["model.pt"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_writer_that_fails_half_way_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(b"old")

    def fails(file: IO[bytes]) -> None:
        file.write(b"half of the ne")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        replace(path, fails)
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["model.pt"]


def test_what_killed_writers_have_left_is_deleted(tmp_path: Path) -> None:
    def dies(file: IO[bytes]) -> None:
        file.write(b"half of the ne")
        os.fsync(file.fileno())
        os._exit(0)

    if not (child := os.fork()):
        replace(tmp_path / "model.pt", dies)
    os.waitpid(child, 0)
    (half,) = tmp_path.iterdir()
    others = {".model.pt.mine", ".other.pt.abcd1234", "model.pt", "model.pt.abcd1234"}
    for name in others:
        (tmp_path / name).write_text("mine")
    clear(tmp_path, ["model.pt", "proof.json"])
    assert half.name.startswith(".model.pt.") and {path.name for path in tmp_path.iterdir()} == others
