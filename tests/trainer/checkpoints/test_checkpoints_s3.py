"""Checkpoints in an object store, before which a proxy fails."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkpointed
import objectstore
import pytest
import torch
from checkpointed import Loop
from objectstore import Store
from test_checkpoints import COMPLETE, begins, killed, of, saves_at
from torch import nn

from torchtally import events


@pytest.fixture
def folder(store: Store) -> str:
    return store.url("a/folder")


def inside(environment: dict[str, str], body: Callable[..., Any], *arguments: Any) -> Any:
    os.environ.update(environment)
    return body(*arguments)


def run(world: int, environment: dict[str, str], body: Callable[..., Any], *arguments: Any) -> list[checkpointed.Found]:
    return checkpointed.run(world, inside, environment, body, *arguments)


@pytest.mark.nightly
def test_another_number_of_ranks_goes_on_where_the_others_stood(store: Store, folder: str) -> None:
    for world, commits in ((2, 2), (3, 1)):
        for found in run(world, store.environment(), checkpointed.stopped_after, folder, commits):
            assert found.message == "stopped by signal 15, after a step and a checkpoint"
    for found in run(2, store.environment(), checkpointed.whole, folder):
        assert found.resumed
        assert found.count == COMPLETE


@pytest.mark.parametrize(
    "moment", [pytest.param("while files are written", marks=pytest.mark.nightly), "between files and manifest"]
)
def test_a_killed_rank_leaves_the_newest_whole_checkpoint(moment: str, store: Store, folder: str) -> None:
    """Without a rename in the store, it is the manifest that makes a checkpoint whole."""
    with pytest.raises(AssertionError, match="died without a word"):
        run(2, store.environment(), killed, folder, moment, 1)
    found = run(2, store.environment(), checkpointed.whole, folder)
    assert of(events.Resumed, found[0])[0]["position"] == 16
    assert found[0].count == COMPLETE


def test_the_newest_few_are_kept(store: Store, folder: str) -> None:
    run(1, store.environment(), saves_at, folder, (1, 3, 4, 6), 7, 2)
    (found,) = run(1, store.environment(), listed, folder)
    assert [int(name.split("-")[4]) for name in found.message.split()] == [16, 24]


def listed(folder: str) -> None:
    loop = Loop(folder, "plain")
    raise checkpointed.Refused(" ".join(loop.checkpoints._storage.names()))


def fails(folder: str, mode_file: Path, mode: str) -> Loop:
    """The server fails from commit 4 to commit 6."""
    loop = Loop(folder, every=32400)

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
    mode: str, saved: list[int], cause: str, store: Store, folder: str, tmp_path: Path
) -> None:
    mode_file = tmp_path / "mode"
    with objectstore.proxy(store.port, mode_file) as proxy:
        first, second = run(2, store.environment(proxy.port), fails, folder, mode_file, mode)
    assert first.count == second.count == COMPLETE
    assert [each["position"] for each in of(events.Saved, first)] == saved
    failed = of(events.SaveFailed, first)
    assert len(failed) == bool(cause)
    if failed:
        assert failed[0]["position"] == 32
        assert cause in failed[0]["cause"]
        assert "checkpoints can be written again" in first.err
    assert run(2, store.environment(), checkpointed.whole, folder)[0].count == COMPLETE


def test_a_server_that_is_away_at_the_start_is_a_volume_that_may_recover(
    store: Store, folder: str, tmp_path: Path
) -> None:
    with objectstore.proxy(store.port, tmp_path / "mode") as proxy:
        (tmp_path / "mode").write_text("away")
        first, second = run(2, store.environment(proxy.port), begins, folder, "")
    assert (first.code, second.code) == (202, 202)
    assert f"the checkpoints in {folder} cannot be read: " in second.message


def test_a_wrong_key_is_refused(store: Store, folder: str) -> None:
    wrong = store.environment(secret="the wrong secret")
    for found in checkpointed.run(2, inside, wrong, begins, folder, ""):
        assert found.code == 2
        assert f"checkpoints: the folder {folder} cannot be written: The request signature" in found.message


def test_a_bucket_that_does_not_exist_is_refused_and_not_made(store: Store) -> None:
    (found,) = run(1, store.environment(), begins, "s3://other/folder", "")
    assert (found.code, "The specified bucket does not exist" in found.message) == (2, True)
    assert "other" not in [each["Name"] for each in store.client().list_buckets()["Buckets"]]


LARGE = 35_000_000  # 70 MB a rank, which the store receives in parts


def large(folder: str, resumes: bool) -> Loop:
    model = checkpointed.Model

    def with_more() -> nn.Module:
        made = model()
        made.more = nn.Parameter(torch.zeros(LARGE) if resumes else torch.arange(LARGE, dtype=torch.float32))
        return made

    checkpointed.Model = with_more
    if not resumes:
        return checkpointed.stopped_after(folder, 2)
    loop = checkpointed.whole(folder)
    assert torch.equal(loop.model.more.full_tensor(), torch.arange(LARGE, dtype=torch.float32))
    return loop


@pytest.mark.nightly
def test_what_goes_to_the_store_in_parts_comes_back(store: Store, folder: str) -> None:
    assert [found.code for found in run(2, store.environment(), large, folder, False)] == [143, 143]
    assert run(2, store.environment(), large, folder, True)[0].count == COMPLETE
