"""A loop of a user's own goes on from its newest whole checkpoint: every sample is in the weights once an epoch."""

import json
import os
import resource
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import checkpointed
import objectstore
import pytest
import ranks
import torch
import torch.distributed as dist
from accounts import alone
from checkpointed import BATCH, EPOCHS, Found, Loop, N, plain
from fsspec.core import url_to_fs
from objectstore import Store
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.optim import ZeroRedundancyOptimizer

from torchtally import Account, events
from torchtally.checkpoints import conditions, storage, writer
from torchtally.checkpoints.manifest import FORMAT, MANIFEST
from torchtally.errors import Refused

COMPLETE = [float(EPOCHS)] * N


def of(kind: type, found: Found) -> list[dict[str, Any]]:
    return [plain(event) for event in found.events if isinstance(event, kind)]


def checkpoints_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir())


def names(rank: int, world: int, store: Any, folder: str) -> list[str]:
    files, path = url_to_fs(folder)
    return [Path(each["name"]).name for each in files.ls(path, detail=True) if each["type"] == "directory"]


def kept(place: Path | str) -> list[int]:
    """The positions of the checkpoints there."""
    found = [each.name for each in checkpoints_in(place)] if isinstance(place, Path) else ranks.run(1, names, place)[0]
    return [int(name.split("-")[4]) for name in sorted(found)]


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """A folder, or a URL of an object store that the environment gives access to."""
    return tmp_path if request.param == "folder" else str(request.getfixturevalue("s3"))


@pytest.fixture
def s3(store: Store, monkeypatch: pytest.MonkeyPatch) -> str:
    given(monkeypatch, store.environment())
    return store.url("a/folder")


def given(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def at(*cases: tuple[Any, ...]) -> pytest.MarkDecorator:
    """Cases of a test, of which each begins with its place."""
    return pytest.mark.parametrize(cases[0], cases[1:], indirect=["place"])


@pytest.mark.parametrize("wrapped", ["plain", "ddp", "fsdp"])
def test_a_stopped_loop_goes_on_with_the_same_bits(wrapped: str, tmp_path: Path) -> None:
    world = 1 if wrapped == "plain" else 2
    expected = checkpointed.run(world, checkpointed.whole, tmp_path / "other", wrapped)
    assert expected[0].count == COMPLETE
    for commits in (1, 3, 7):
        for found in checkpointed.run(world, checkpointed.stopped_after, tmp_path / "here", commits, wrapped):
            assert (found.code, found.message) == (
                143,
                "stopped by signal 15, which rank 0 received, after a step and a checkpoint",
            )
    for rank, found in enumerate(checkpointed.run(world, checkpointed.whole, tmp_path / "here", wrapped)):
        assert found.resumed
        assert found.count == COMPLETE
        assert (found.bits, found.lr) == (expected[rank].bits, expected[rank].lr)


def saves_any_layout(folder: Path) -> bool:
    model = nn.Module()
    values = torch.arange(6.0)
    layouts = {"strided": values[::2], "column": values.view(3, 2)[:, 1]}
    layouts |= {"scalar": values[0], "none": values[:0], "complex": values + 0j, "short": values.bfloat16()}
    for name, value in layouts.items():
        model.register_parameter(name, nn.Parameter(value, requires_grad=False))
    with Account(task="t", plan={"train": 1}) as account:
        loader = account.loader(range(N), "train", batch_size=BATCH)
        kept = account.checkpoints(folder, {"model": model})
        resumed = kept.resume()
        kept.save(wait=True)
        for _ in account.epoch("train", 1, loader):
            account.commit()
    return resumed


def test_parameters_of_any_layout_and_kind_are_saved(tmp_path: Path) -> None:
    for resumed in (False, True):
        found = alone(saves_any_layout, tmp_path)
        assert (found["code"], found["result"]) == (0, resumed), found["err"]


@at(
    ("place", "before", "after"),
    ("folder", 2, 3),
    ("folder", 3, 1),
    pytest.param("s3", 3, 2, marks=pytest.mark.nightly),
)
def test_another_number_of_ranks_goes_on_where_the_others_stood(before: int, after: int, place: Path | str) -> None:
    checkpointed.run(before, checkpointed.stopped_after, place, 2)
    for found in checkpointed.run(after, checkpointed.whole, place):
        assert found.resumed
        assert found.count == COMPLETE


def test_programs_can_follow_it(tmp_path: Path) -> None:
    position = 2 * BATCH * 2
    first, second = checkpointed.run(2, checkpointed.stopped_after, tmp_path, 2)
    assert of(events.Saved, first) == [{"epoch": 1, "position": position}]
    assert of(events.Stopped, first) == [{"signal": 15, "saved": True, "epoch": 1, "position": position}]
    first, other = checkpointed.run(2, checkpointed.whole, tmp_path)
    assert of(events.Resumed, first) == [
        {"task": "counting", "world": 2, "epoch": 1, "position": position, "discarded": 0}
    ]
    assert second.events == other.events == []


# A rank is killed.


def killed(folder: Path, moment: str, victim: int) -> Loop:
    """A checkpoint is whole at commit 2. At commit 5 another is begun, and in it a rank is killed."""
    loop = Loop(folder, every=32400)

    def kill(*arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def after(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments, **named: kill(function(*arguments, **named))

    def before_commit(loop: Loop) -> None:
        if loop.found.commits in (2, 5):
            loop.due()
        if loop.found.commits == 5 and loop.account.rank == victim:
            if moment == "while files are written":
                storage._Hashing.write = kill
            elif moment == "between files and manifest":
                writer.save = after(writer.save)
            else:
                writer.on_rank_0 = after(writer.on_rank_0)
        if loop.found.commits == 6:
            loop.checkpoints._writer.finish()

    loop.run(before_commit)
    return loop


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    return checkpointed.run(2, checkpointed.whole, tmp_path_factory.mktemp("undisturbed"))


@at(
    ("place", "moment", "victim"),
    ("folder", "while files are written", 1),
    ("folder", "between files and manifest", 0),
    ("folder", "after the manifest", 0),
    # Without a rename in the store, it is the manifest that makes a checkpoint whole.
    ("s3", "between files and manifest", 1),
    pytest.param("s3", "while files are written", 1, marks=pytest.mark.nightly),
)
def test_a_killed_rank_leaves_the_newest_whole_checkpoint(
    moment: str, victim: int, place: Path | str, undisturbed: list[Found]
) -> None:
    with pytest.raises(AssertionError, match="died without a word"):
        checkpointed.run(2, killed, place, moment, victim)
    found = checkpointed.run(2, checkpointed.whole, place)
    whole = moment == "after the manifest"
    (resumed,) = of(events.Resumed, found[0])
    # A store has no note of what was reached.
    assert (resumed["position"], resumed["discarded"]) == ((40, 0) if whole else (16, 24 * isinstance(place, Path)))
    assert ("it was not written to its end" in found[0].err) is not whole
    assert [each.count for each in found] == [COMPLETE] * 2
    assert [each.bits for each in found] == [each.bits for each in undisturbed]


# In the background.


def writes_slowly(folder: Path) -> Loop:
    """Rank 1 needs commits 2 to 6 to write the first checkpoint. The loop ends after 8."""
    loop, goes_on, write = Loop(folder, every=32400), threading.Event(), storage._Hashing.write

    def slow(*arguments: Any) -> int:
        goes_on.wait()
        return write(*arguments)

    if loop.account.rank == 1:
        storage._Hashing.write = slow

    def before_commit(loop: Loop) -> None:
        if loop.found.commits in (2, 4, 5):
            loop.checkpoints._saved = -1e9
        if loop.found.commits == 6:
            goes_on.set()
            loop.checkpoints._writer._writing.result()
        if loop.found.commits == 8:
            loop.due()
            os.kill(os.getpid(), signal.SIGKILL)

    loop.run(before_commit)
    return loop


def test_the_loop_goes_on_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    """What was asked for meanwhile is saved once the former is done, and each holds the state of its own commit."""
    with pytest.raises(AssertionError, match="died without a word"):
        checkpointed.run(2, writes_slowly, tmp_path)
    first, second = checkpoints_in(tmp_path)
    assert [path.name.rpartition("-")[0] for path in (first, second)] == [
        "00000001-epoch-1-position-16",
        "00000002-epoch-1-position-48",
    ]
    (second / MANIFEST).unlink()
    for found in checkpointed.run(2, checkpointed.whole, tmp_path):
        assert found.count == COMPLETE


def stopped_while_writing(folder: Path) -> Loop:
    """The write at commit 2 is held up until the signal at commit 4."""
    loop, write = Loop(folder, every=32400), storage._Hashing.write

    def held_up(*arguments: Any) -> int:
        while not loop.checkpoints._stopping._number:
            time.sleep(0.01)
        return write(*arguments)

    def before_commit(loop: Loop) -> None:
        if loop.found.commits == 2:
            loop.checkpoints._saved = -1e9
        if loop.found.commits == 4:
            signal.raise_signal(signal.SIGINT)

    storage._Hashing.write = held_up
    loop.run(before_commit)
    return loop


def test_a_stop_waits_for_the_checkpoint_that_is_being_written_and_saves_another(tmp_path: Path) -> None:
    first, second = checkpointed.run(2, stopped_while_writing, tmp_path)
    assert first.code == second.code == 130
    assert [each["position"] for each in of(events.Saved, first)] == [16, 32]
    assert checkpointed.run(2, checkpointed.whole, tmp_path)[0].count == COMPLETE


# Kept, skipped, deleted.


def saves_at(folder: str | Path, commits: tuple[int, ...], last: int, keep: int = 2) -> Loop:
    """Ends as if killed."""
    loop = Loop(folder, "plain", every=32400, keep=keep)

    def before_commit(loop: Loop) -> None:
        if loop.found.commits in commits:
            loop.due()
        if loop.found.commits == last:
            raise KeyError("the user's own")

    with pytest.raises(KeyError):
        loop.run(before_commit)
    loop.checkpoints.close()
    return loop


@at(("place", "keep"), ("folder", 1), ("folder", 3), ("s3", 2))
def test_the_newest_few_are_kept(keep: int, place: Path | str) -> None:
    checkpointed.run(1, saves_at, place, (1, 3, 4, 6, 7), 8, keep)
    assert kept(place) == [4, 12, 16, 24, 28][-keep:]


def saves_beside_another_start(folder: Path) -> Loop:
    """While this start terminates, the next one has gone on and writes a checkpoint with a higher number."""
    loop = Loop(folder, "plain", every=32400, keep=1)

    def before_commit(loop: Loop) -> None:
        if loop.found.commits == 2:
            (folder / "00000009-epoch-2-position-8-0123abcd").mkdir()
        if loop.found.commits in (3, 5):
            loop.due()

    loop.run(before_commit)
    return loop


def test_what_a_later_start_writes_is_not_deleted(tmp_path: Path) -> None:
    checkpointed.run(1, saves_beside_another_start, tmp_path)
    assert kept(tmp_path) == [20, 8]


def replaced(old: str, new: str) -> Callable[[Path], object]:
    def replace(file: Path) -> None:
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))

    return replace


def flip_a_bit(file: Path) -> None:
    contents = bytearray(file.read_bytes())
    contents[len(contents) // 2] ^= 1
    file.write_bytes(contents)


DATA = "__0_0.distcp"
# The file that is damaged, how, and what is said of it.
DAMAGES: list[tuple[str, Callable[[Path], object], str]] = [
    (MANIFEST, Path.unlink, "it was not written to its end"),
    (MANIFEST, lambda file: file.write_bytes(b""), "its manifest is damaged"),
    (MANIFEST, replaced('"position": 12', '"position": 13'), "its manifest is damaged"),
    (MANIFEST, replaced("[0, 1, 12, 0]", "[0, 1, 16, 0]"), "its manifest is damaged"),  # the account's
    (DATA, Path.unlink, f"its file {DATA} is missing"),
    (DATA, lambda file: os.truncate(file, file.stat().st_size - 1), "bytes and not"),
    (DATA, flip_a_bit, f"its file {DATA} is damaged"),
]


def test_a_damaged_checkpoint_is_skipped_and_deleted_once_another_is_whole(tmp_path: Path) -> None:
    checkpointed.run(1, saves_at, tmp_path / "whole", (2, 3), 4)
    damaged = []
    for number, (name, damage, _) in enumerate(DAMAGES):
        shutil.copytree(tmp_path / "whole", tmp_path / str(number))
        damaged.append(checkpoints_in(tmp_path / str(number))[1])
        damage(damaged[-1] / name)
    of_each = checkpointed.in_turn((saves_at, each.parent, (1,), 3) for each in damaged)
    for each, (name, _, sentence), found in zip(damaged, DAMAGES, of_each, strict=True):
        assert f"skipped checkpoint {each}: " in found.err and sentence in found.err, (name, sentence)
        assert of(events.Resumed, found)[0]["position"] == 8
        assert kept(each.parent) == [8, 12]
        assert not each.exists()
    # It stays until then.
    flip_a_bit(checkpoints_in(tmp_path / "whole")[1] / DATA)
    checkpointed.run(1, saves_at, tmp_path / "whole", (), 2)
    assert kept(tmp_path / "whole") == [8, 12]
    assert checkpointed.run(1, checkpointed.whole, tmp_path / "whole", "plain")[0].count == COMPLETE


def fill(bytes: int = resource.RLIM_INFINITY) -> None:
    """From now on a file has room for so many bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes, resource.RLIM_INFINITY))


def cannot_write_at_2(folder: Path) -> Loop:
    """Rank 1 cannot write the first checkpoint, and all can write the second."""
    loop = Loop(folder, every=32400)

    def before_commit(loop: Loop) -> None:
        if loop.account.rank == 1 and loop.found.commits == 2:
            fill(10)
        if loop.found.commits in (2, 4):
            loop.due()
        if loop.found.commits == 4:
            fill()

    loop.run(before_commit)
    return loop


def test_a_failed_write_is_a_warning_that_all_ranks_learn_of(tmp_path: Path) -> None:
    first, second = checkpointed.run(2, cannot_write_at_2, tmp_path)
    assert first.count == second.count == COMPLETE
    cause = "rank 1: [Errno 27] File too large"
    assert of(events.SaveFailed, first) == [{"epoch": 1, "position": 16, "cause": cause}]
    assert f"no checkpoint could be written to {tmp_path}, the training continues: {cause}" in first.err
    assert [each["position"] for each in of(events.Saved, first)] == [32]
    assert "checkpoints can be written again" in first.err
    assert kept(tmp_path) == [32]


def test_what_a_failed_write_has_left_can_be_flushed(tmp_path: Path) -> None:
    """As PyTorch does when it collects the stream: an error there would be a traceback in the log."""
    files = storage.Files(storage.Storage(tmp_path))
    with pytest.raises(OSError, match="full"), files.create_stream(tmp_path / "a", "wb") as stream:
        raise OSError("full")
    stream.flush()


def stopped_when_full(folder: Path) -> Loop:
    fill(10)
    return checkpointed.stopped_after(folder, 2)


def test_a_stop_without_a_checkpoint_says_so(tmp_path: Path) -> None:
    checkpointed.run(2, checkpointed.stopped_after, tmp_path, 3)
    for found in checkpointed.run(2, stopped_when_full, tmp_path):
        assert found.message == (
            "stopped by signal 15, which rank 0 received, after a step and without a new checkpoint"
        )
    assert kept(tmp_path) == [24]


def test_a_folder_that_cannot_be_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "folder"
    first, second = checkpointed.run(2, begins, folder)
    assert (first.code, second.code) == (202, 202)
    assert f"no checkpoint can be written to {folder} now: " in first.err
    assert f"the checkpoints in {folder} cannot be read: " in first.message


def test_garbled_progress_counts_nothing(tmp_path: Path) -> None:
    checkpointed.run(1, saves_at, tmp_path / "whole", (2,), 5)
    text = (tmp_path / "whole/reached").read_bytes()
    garbled = (b"", b"\0" * 41, text[:-2], text.replace(b"16", b"96"), b"0 99999 00000000\n", "²".encode() * 20)
    for number, each in enumerate((*garbled, text)):
        shutil.copytree(tmp_path / "whole", tmp_path / str(number))
        (tmp_path / str(number) / "reached").write_bytes(each)
    *of_garbled, found = checkpointed.in_turn((saves_at, tmp_path / str(number), (), 1) for number in range(7))
    assert [of(events.Resumed, each)[0]["discarded"] for each in of_garbled] == [0] * 6
    assert of(events.Resumed, found)[0]["discarded"] == 8


# What is refused.


def begins(folder: str | Path, change: str = "") -> Loop:
    """Resumes, with something changed."""
    model = checkpointed.Model

    def changed() -> nn.Module:
        made = model()
        if change == "larger":
            made.more = nn.Linear(1, 1)
        elif change == "smaller":
            del made.net[2]
        elif change == "wider":
            made.unused = nn.Linear(2, 3)
        return made

    with patch.object(checkpointed, "Model", changed):
        loop = Loop(folder, "plain", every=32400, seed=7 if change == "seed" else 0)
    if change == "optimizer":
        loop.checkpoints._objects._objects["adam"] = torch.optim.SGD(loop.model.net.parameters(), lr=1)
    elif change == "groups":
        adam = loop.checkpoints._objects._objects["adam"]
        adam.add_param_group({"params": [adam.param_groups[0]["params"].pop()], "lr": 0.5})
    loop.checkpoints.resume()
    return loop


CHANGES = {
    "seed": "the state has seed 0, and seed is 7",
    "larger": "it holds other objects: Missing key in checkpoint state_dict: model.more.weight",
    "smaller": "it holds other objects: it has model.net.2.weight, which is not here",
    "wider": "it holds other objects: Size mismatch between saved torch.Size([2, 2]) and current",
    "optimizer": "'adam': 'Adam'",
    "groups": "it holds other objects: 'adam' has its parameters in groups of 6 there and of 5, 1 here",
}


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    checkpointed.run(1, saves_at, tmp_path, (2,), 3)
    of_each = checkpointed.in_turn((begins, tmp_path, change) for change in CHANGES)
    for sentence, found in zip(CHANGES.values(), of_each, strict=True):
        assert (found.code, sentence in found.message) == (2, True), (sentence, found.message)
    assert kept(tmp_path) == [8]


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    checkpointed.run(1, saves_at, tmp_path, (2, 3), 4)
    manifest = checkpoints_in(tmp_path)[1] / MANIFEST
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": FORMAT + 1, "sha256": "other"}))
    (found,) = checkpointed.run(1, begins, tmp_path)
    assert found.code == 2
    assert f"has format {FORMAT + 1}, and this version of torchtally reads format {FORMAT}" in found.message


def never_resumes(folder: Path) -> None:
    loop = Loop(folder, "plain")
    next(loop.account.batches())
    loop.account.commit()


def test_a_loop_that_does_not_resume_is_refused(tmp_path: Path) -> None:
    assert "call resume() before the first commit" in checkpointed.run(1, never_resumes, tmp_path)[0].message


def trains_apart(folder: Path, others: list[int]) -> Loop:
    """Ranks without DistributedDataParallel, on machines that are alike, except those of `others`."""
    if dist.get_rank() in others:
        own = conditions.of_this_rank
        conditions.of_this_rank = lambda device: own(device) | {"instructions": "others"}
    loop = Loop(folder, "plain", every=32400)

    def before_commit(loop: Loop) -> None:
        if loop.found.commits == 2:
            loop.due()

    loop.run(before_commit)
    return loop


@pytest.mark.parametrize(
    ("world", "others", "different"),
    [(2, [], "ranks 0 and 1"), (2, [1], None), (3, [1], "ranks 0 and 2")],
    ids=["alike", "others", "others between"],
)
def test_a_checkpoint_of_ranks_with_other_weights_is_refused_unless_machines_round_differently(
    world: int, others: list[int], different: str | None, tmp_path: Path
) -> None:
    for found in checkpointed.run(world, trains_apart, tmp_path, others):
        assert found.code == (2 if different else 0), found.message
        assert (f"{different} have different values of model.count.weight" in found.message) is bool(different)


class Holder:
    """No module, but it has the state of one."""

    def __init__(self, model: nn.Module):
        self.state_dict, self.load_state_dict = model.state_dict, model.load_state_dict


def offered(rank: int, world: int, store: Any, folder: Path) -> list[tuple[str, str]]:
    """What is expected of each offer of objects and options, and what is said of it."""
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    one, other = nn.Linear(2, 2), nn.Linear(3, 3)
    sgd = torch.optim.SGD(other.parameters(), lr=1)
    zero = ZeroRedundancyOptimizer(other.parameters(), torch.optim.SGD, lr=1)
    no_parameter: dict[str, Any] = {"params": []}
    groups = torch.optim.SGD([{"params": other.parameters()}, no_parameter, no_parameter.copy()], lr=1)
    sharded = FullyShardedDataParallel(nn.Linear(1, 1), device_id=torch.device("cpu"))
    left_out = "'optimizer' steps parameters of which no object has a state"
    averages = torch.optim.swa_utils.AveragedModel(one)
    offers: list[tuple[dict[str, Any], str]] = [
        ({}, "must name at least one"),
        ({"model": 7}, "'model' is a int, which must have"),
        ({"optimizer": sgd}, left_out),
        ({"one": one, "optimizer": sgd}, left_out),  # two models, as of a GAN
        ({"one": one, "other": other, "optimizer": sgd}, ""),
        ({"other": torch.compile(other, backend="eager"), "optimizer": sgd}, ""),
        ({"averages": averages, "other": Holder(other), "optimizer": sgd}, ""),
        ({"other": other, "optimizer": zero}, "a ZeroRedundancyOptimizer, of whose state each rank has only a part"),
        ({"other": other, "optimizer": torch.optim.LBFGS(other.parameters())}, "'optimizer' is a LBFGS, whose state"),
        ({"other": other, "optimizer": torch.optim.SparseAdam(other.parameters())}, "a SparseAdam, whose state"),
        ({"other": other, "optimizer": groups}, "'optimizer' has two groups without a parameter: leave them out"),
        ({"model": sharded}, "'model' has a FullyShardedDataParallel: shard it with FSDP2's fully_shard"),
    ]
    chosen: list[tuple[str, Any, str]] = [("keep", value, "a whole number from 1") for value in (0, True)]
    chosen += [("every", value, "a number of seconds above 0") for value in ("5m", True, 0, float("nan"), 2e9, None)]
    found = []
    for objects, expected in offers:
        found.append((expected, said(folder, objects)))
    for name, value, what in chosen:
        found.append((f"checkpoints: {name}={value!r} must be {what}", said(folder, {"model": one}, **{name: value})))
    return found


def said(folder: Path, objects: dict[str, Any], **options: Any) -> str:
    try:
        checkpointed.Checkpoints(checkpointed.Position(), folder, objects, **options).close()
    except Refused as refused:
        return str(refused)
    return ""


def test_what_cannot_be_saved_and_loaded_is_refused_before_the_first_step(tmp_path: Path) -> None:
    """Else weights would begin anew after a resume, and the account would not."""
    for expected, found in ranks.run(1, offered, tmp_path)[0]:
        assert expected in found and bool(expected) == bool(found), (expected, found)


@pytest.mark.parametrize(
    ("folder", "sentence"),
    [
        (
            "memory://folder",
            "must be one that all pods share: rank 1 (pod-1) does not see what rank 0 has written there",
        ),
        ("other://folder", "the folder 'other://folder' cannot be used: "),
    ],
)
def test_a_folder_that_not_all_ranks_have_is_refused(folder: str, sentence: str) -> None:
    for found in checkpointed.run(2, begins, folder):
        assert (found.code, sentence in found.message) == (2, True)


def test_ranks_in_one_process_may_use_any_file_system_of_fsspec() -> None:
    """What has no rename keeps checkpoints by their manifests as well."""
    assert ranks.run(1, checkpointed.as_rank, in_memory)[0].count == COMPLETE


def in_memory() -> Loop:
    saves_at("memory://folder", (2, 3), 4)
    return checkpointed.whole("memory://folder", "plain")


# In an object store, before which a proxy fails.


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
def test_the_training_goes_on_while_an_s3_server_fails(
    mode: str, saved: list[int], cause: str, s3: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mode_file = tmp_path / "mode"
    with objectstore.proxy(store.port, mode_file) as proxy:
        given(monkeypatch, store.environment(proxy.port))
        first, second = checkpointed.run(2, fails, s3, mode_file, mode)
    assert first.count == second.count == COMPLETE
    assert [each["position"] for each in of(events.Saved, first)] == saved
    failed = of(events.SaveFailed, first)
    assert len(failed) == bool(cause)
    if failed:
        assert failed[0]["position"] == 32
        assert cause in failed[0]["cause"]
        assert "checkpoints can be written again" in first.err
    given(monkeypatch, store.environment())
    assert checkpointed.run(2, checkpointed.whole, s3)[0].count == COMPLETE


def test_an_s3_server_that_is_away_at_the_start_is_a_volume_that_may_recover(
    s3: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with objectstore.proxy(store.port, tmp_path / "mode") as proxy:
        (tmp_path / "mode").write_text("away")
        given(monkeypatch, store.environment(proxy.port))
        first, second = checkpointed.run(2, begins, s3)
    assert (first.code, second.code) == (202, 202)
    assert f"the checkpoints in {s3} cannot be read: " in second.message


def test_a_wrong_key_of_s3_and_a_bucket_that_is_not_there_are_refused(
    s3: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (found,) = checkpointed.run(1, begins, "s3://other/folder")
    assert (found.code, "The specified bucket does not exist" in found.message) == (2, True)
    assert "other" not in [each["Name"] for each in store.client().list_buckets()["Buckets"]]
    given(monkeypatch, store.environment(secret="the wrong secret"))
    for found in checkpointed.run(2, begins, s3):
        assert found.code == 2
        assert f"checkpoints: the folder {s3} cannot be written: The request signature" in found.message


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
def test_what_goes_to_s3_in_parts_comes_back(s3: str) -> None:
    assert [found.code for found in checkpointed.run(2, large, s3, False)] == [143, 143]
    assert checkpointed.run(2, large, s3, True)[0].count == COMPLETE
