"""Checkpoints in an object store: MinIO, a real S3 server, and before it a proxy that fails."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import checkpointed
import objectstore
import pytest
import torch
from checkpointed import Loop
from test_checkpoints import COMPLETE, begins, killed, of, saves_at
from torch import nn

from torchtally import events

pytest.importorskip("s3fs", reason="the extra s3 is not installed")
pytestmark = pytest.mark.skipif(
    objectstore.program() is None, reason="MinIO is not there: `scripts/tools.py minio` builds it with Go"
)

FOLDER = f"s3://{objectstore.BUCKET}/a/folder"


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    with objectstore.server(tmp_path / "minio") as port:
        yield port


def inside(environment: dict[str, str], body: Callable[..., Any], *arguments: Any) -> Any:
    os.environ.update(environment)
    return body(*arguments)


def run(world: int, port: int, body: Callable[..., Any], *arguments: Any) -> list[checkpointed.Found]:
    return checkpointed.run(world, inside, objectstore.environment(port), body, *arguments)


@pytest.mark.nightly
def test_another_number_of_ranks_goes_on_where_the_others_stood(port: int) -> None:
    for world, commits in ((2, 2), (3, 1)):
        for found in run(world, port, checkpointed.stopped_after, FOLDER, commits):
            assert found.message == "stopped by signal 15, after a step and a checkpoint"
    for found in run(2, port, checkpointed.whole, FOLDER):
        assert found.resumed
        assert found.count == COMPLETE


@pytest.mark.parametrize(
    "moment", [pytest.param("while files are written", marks=pytest.mark.nightly), "between files and manifest"]
)
def test_a_killed_rank_leaves_the_newest_whole_checkpoint(moment: str, port: int) -> None:
    """Without a rename in the store, it is the manifest that makes a checkpoint whole."""
    with pytest.raises(AssertionError, match="died without a word"):
        run(2, port, killed, FOLDER, moment, 1)
    found = run(2, port, checkpointed.whole, FOLDER)
    assert of(events.Resumed, found[0])[0]["position"] == 16
    assert found[0].count == COMPLETE


def test_the_newest_few_are_kept(port: int) -> None:
    run(1, port, saves_at, FOLDER, (1, 3, 4, 6), 7, 2)
    (found,) = run(1, port, listed)
    assert [int(name.split("-")[4]) for name in found.message.split()] == [16, 24]


def listed() -> None:
    loop = Loop(FOLDER, "plain")
    raise checkpointed.Refused(" ".join(loop.checkpoints._storage.names()))


def fails(mode_file: Path, mode: str) -> Loop:
    """The server fails from commit 4 to commit 6."""
    loop = Loop(FOLDER, every=32400)

    def set_mode(mode: str) -> None:
        if loop.account.rank == 0:  # the others have not begun before rank 0 has committed
            mode_file.write_text(mode)

    def before_commit(loop: Loop) -> None:
        if loop.found.commits in (2, 4):
            loop.due()
        if loop.found.commits == 4:
            set_mode(mode)
        if loop.found.commits == 6:
            if mode == "held":
                assert not loop.checkpoints._writer._writing.done()
                set_mode("passing")
            loop.due()
            set_mode("passing")

    loop.run(before_commit)
    return loop


@pytest.mark.parametrize(
    ("mode", "saved", "cause"),
    [
        pytest.param("held", [16, 32, 48], "", marks=pytest.mark.nightly),
        ("away", [16, 48], "endpoint URL"),
        ("full", [16, 48], "XMinioStorageFull"),
    ],
)
def test_the_training_goes_on_while_the_server_fails(
    mode: str, saved: list[int], cause: str, port: int, tmp_path: Path
) -> None:
    mode_file = tmp_path / "mode"
    with objectstore.proxy(port, mode_file) as proxy:
        first, second = run(2, proxy.port, fails, mode_file, mode)
    assert first.count == second.count == COMPLETE
    assert [each["position"] for each in of(events.Saved, first)] == saved
    failed = of(events.SaveFailed, first)
    assert len(failed) == bool(cause)
    if failed:
        assert failed[0]["position"] == 32
        assert cause in failed[0]["cause"]
        assert "checkpoints can be written again" in first.err
    assert run(2, port, checkpointed.whole, FOLDER)[0].count == COMPLETE


def test_a_server_that_is_away_at_the_start_is_a_volume_that_may_recover(port: int, tmp_path: Path) -> None:
    with objectstore.proxy(port, tmp_path / "mode") as proxy:
        (tmp_path / "mode").write_text("away")
        first, second = run(2, proxy.port, begins, FOLDER, "")
    assert (first.code, second.code) == (202, 202)
    assert f"the checkpoints in {FOLDER} cannot be read: " in second.message


def test_a_wrong_key_is_refused(port: int) -> None:
    wrong = objectstore.environment(port, "the wrong secret")
    for found in checkpointed.run(2, inside, wrong, begins, FOLDER, ""):
        assert found.code == 2
        assert f"checkpoints: the folder {FOLDER} cannot be written: The request signature" in found.message


def test_a_bucket_that_does_not_exist_is_refused_and_not_made(port: int, tmp_path: Path) -> None:
    (found,) = run(1, port, begins, "s3://other/folder", "")
    assert (found.code, "The specified bucket does not exist" in found.message) == (2, True)
    assert not (tmp_path / "minio" / "other").exists()


LARGE = 35_000_000  # 70 MB a rank, which the store receives in parts


def large(resumes: bool) -> Loop:
    model = checkpointed.Model

    def with_more() -> nn.Module:
        made = model()
        made.more = nn.Parameter(torch.zeros(LARGE) if resumes else torch.arange(LARGE, dtype=torch.float32))
        return made

    checkpointed.Model = with_more
    if not resumes:
        return checkpointed.stopped_after(FOLDER, 2)
    loop = checkpointed.whole(FOLDER)
    assert torch.equal(loop.model.more.full_tensor(), torch.arange(LARGE, dtype=torch.float32))
    return loop


@pytest.mark.nightly
def test_what_goes_to_the_store_in_parts_comes_back(port: int) -> None:
    assert [found.code for found in run(2, port, large, False)] == [143, 143]
    assert run(2, port, large, True)[0].count == COMPLETE
