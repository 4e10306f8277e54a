"""A library's checkpoint that is in a folder of rank 0 alone: all ranks load it."""

import os
from pathlib import Path

import pytest
from accounts import run
from squares import Squares

from torchtally import Account

CHECKPOINT = Path("output/checkpoint-7")


def written(folder: Path, pod: str, weights: bytes) -> None:
    (folder / pod / CHECKPOINT / "model").mkdir(parents=True)
    (folder / pod / CHECKPOINT / "model/weights").write_bytes(weights)


def looks(folder: Path, trains: bool) -> tuple[str, bytes]:
    """Where a rank finds the checkpoint, and what is in it. Each pod has a volume of its own."""
    os.chdir(folder / os.environ["HOSTNAME"])
    with Account("t", epochs=1) as account:
        found = account.resume_from(CHECKPOINT)
        read = (str(found), (found / "model/weights").read_bytes() if found else b"")
        if trains:
            for _ in account.loader(Squares(4), batch_size=2):
                account.commit()
        account.stop("looked")
    return read


@pytest.mark.parametrize("other", [None, b"older"])
def test_all_ranks_find_the_checkpoint_of_rank_0(other: bytes | None, tmp_path: Path) -> None:
    weights = os.urandom(3 << 20)
    written(tmp_path, "pod-0", weights)
    (tmp_path / "pod-1").mkdir()
    if other:
        written(tmp_path, "pod-1", other)
    first, second = (each["result"] for each in run(2, looks, tmp_path, False))
    assert first == (str(CHECKPOINT), weights)
    assert second[1] == weights and Path(second[0]).name == CHECKPOINT.name
    assert not Path(second[0]).exists()  # a copy


def test_a_checkpoint_of_another_rank_is_none(tmp_path: Path) -> None:
    (tmp_path / "pod-0").mkdir()
    written(tmp_path, "pod-1", b"older")
    assert [each["result"] for each in run(2, looks, tmp_path, True)] == [("None", b"")] * 2


def test_a_checkpoint_that_is_not_loaded_is_refused(tmp_path: Path) -> None:
    for pod in ("pod-0", "pod-1"):
        written(tmp_path, pod, b"weights")
    for ended in run(2, looks, tmp_path, True):
        assert ended["code"] == 2
