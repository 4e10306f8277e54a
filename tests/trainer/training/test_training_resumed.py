"""A training that is interrupted and taken up again ends as one that was not: the same weights, every sample once."""

import contextlib
import dataclasses
import functools
import shutil
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import objectstore
import proofs
import pytest
import ranks
import torch
import torch.distributed as dist
import toy
from accounts import tallies
from commands import FEW, QUICK, alone
from interrupted import FACTS, Interrupted, Interrupting, InterruptingShared, outcome
from messages import plain
from task_runs import reported
from torch import nn
from torch.distributed.distributed_c10d import Store

from torchtally import Account, events
from torchtally.checkpoints import checkpoint_file
from torchtally.checkpoints.coordination import Rounds
from torchtally.checkpoints.of_rank_0 import CheckpointsOfRank0
from torchtally.errors import Refused, Stopped, Volume
from torchtally.options import AllReduce, Training
from torchtally.proof import run_summary
from torchtally.proof.contract import Contract
from torchtally.training.loop import Loop

N = 69  # the last step has 9 samples: uneven, and two or more for each of four ranks
OPTIONS = Training(epochs=3, global_batch_size=12, lr=0.1, contract="exact", seed=3)
STEPS = -(-N // 12)


def model(options: Training) -> nn.Module:
    """Big enough for DDP's sums to depend on their order, with all that has a memory."""
    return nn.Sequential(
        nn.Linear(4, 200),
        nn.BatchNorm1d(200),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(200, 200),
        nn.ReLU(),
        nn.Linear(200, 2),
    )


TASK = dataclasses.replace(
    toy.task(),
    model=model,
    optimizer=lambda parameters, options: torch.optim.SGD(parameters, lr=options.lr, momentum=0.9, fused=True),
)


# A training has checkpoints of its own, or such that all ranks write (--checkpoints).
Kind = Literal["own", "shared"]


def start(
    rank: int,
    world: int,
    store: Store,
    kind: Kind,
    folder: Path | None,
    interruption: tuple[int, int] | None = None,
    options: Training = OPTIONS,
    signal_to: dict[int, int] | None = None,  # by rank, before the first step
    facts: Mapping[str, Any] = FACTS,
) -> toy.Fitted:
    """One start of the training, of the ranks of one process group."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    with contextlib.ExitStack() as stack:

        def saving(loop: Loop, account: Account) -> Rounds:
            own = folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            interrupting = {"own": Interrupting, "shared": InterruptingShared}[kind]
            checkpoints = interrupting(account, own, toy.objects(loop), keep=2, every=1e9)
            checkpoints.interruption = interruption
            if signal_to and rank in signal_to:
                signal.raise_signal(signal_to[rank])
            return checkpoints

        if kind == "shared":
            options = dataclasses.replace(options, checkpoints=str(folder))
        return toy.train(TASK, options, toy.samples(N, 1), toy.samples(31, 2), saving, facts)


def outcome_of(rank: int, world: int, store: Store, *how: Any) -> dict[str, Any]:
    return outcome(start(rank, world, store, *how))


@functools.cache
def undisturbed(world: int, options: Training = OPTIONS) -> list[dict[str, Any]]:
    return ranks.run(world, outcome_of, "own", None, None, options)


def interrupted(rank: int, world: int, store: Store, *how: Any) -> None:
    with pytest.raises(Interrupted):
        start(rank, world, store, *how)


def everywhere(
    rank: int, world: int, store: Store, kind: Kind, folder: Path, steps: list[int], options: Training
) -> list[dict[str, Any]]:
    """Interrupted at each of these steps."""
    found = []
    for step in steps:
        interrupted(rank, world, store, kind, folder / str(step), (step, step % 3), options)
        found.append(outcome_of(rank, world, store, kind, folder / str(step), None, options))
    return found


ALL = [*range(1, 2 * (STEPS - 1) + 1)]  # of the first two epochs


@pytest.mark.parametrize(
    ("kind", "world", "all_reduce", "steps"),
    [
        ("own", 1, "float32", ALL),
        ("own", 3, "bfloat16", [1, STEPS - 1, STEPS + 1]),
        ("shared", 2, "float32", [1, STEPS - 1, STEPS + 1]),
        pytest.param("own", 2, "float32", ALL, marks=pytest.mark.nightly),
        pytest.param("own", 3, "bfloat16", ALL, marks=pytest.mark.nightly),
        pytest.param("own", 4, "float32", ALL, marks=pytest.mark.nightly),
    ],
)
def test_interrupted_anywhere_it_ends_with_the_same_bits(
    kind: Kind, world: int, all_reduce: AllReduce, steps: list[int], tmp_path: Path
) -> None:
    options = dataclasses.replace(OPTIONS, all_reduce=all_reduce)
    expected = undisturbed(world, options)
    assert all(line["lost"] == line["duplicated"] == 0 for line in expected[0]["lines"])
    for rank, found in enumerate(ranks.run(world, everywhere, kind, tmp_path, steps, options)):
        assert not isinstance(found, Exception), found
        assert found == [expected[rank]] * len(steps)


def accounted(rank: int, world: int, store: Store, kind: Kind, folder: Path) -> dict[str, Any]:
    with toy.proved() as phases:
        fitted = start(rank, world, store, kind, folder)
    return {"phases": phases, "worlds": [*fitted.train.worlds], "discarded": fitted.discarded}


@pytest.mark.parametrize(
    ("kind", "starts", "worlds"),
    [
        # The third takes up 33 of 69 samples: 3 steps, and 4 of the next epoch.
        ("own", [(4, 2), (2, 1), (3, 3 + 4)], [(1, 0, 4), (1, 24, 2), (1, 36, 3), (2, 48, 1)]),
        ("shared", [(3, 2)], [(1, 0, 3), (1, 24, 1)]),
    ],
)
def test_the_number_of_ranks_may_change_again_and_again(
    kind: Kind, starts: list[tuple[int, int]], worlds: list[tuple[int, int, int]], tmp_path: Path
) -> None:
    for world, save_after in starts:
        assert ranks.run(world, interrupted, kind, tmp_path, (save_after, 1)) == [None] * world
    (found,) = ranks.run(1, accounted, kind, tmp_path)
    assert all(line["lost"] == line["duplicated"] == 0 for lines in found["phases"] for line in lines)
    for after in [found, *ranks.run(2, accounted, kind, tmp_path)]:  # which have nothing left to train
        assert after["worlds"] == worlds


def test_what_a_crash_threw_away_is_counted_once(tmp_path: Path) -> None:
    ranks.run(2, interrupted, "own", tmp_path, (2, 3))
    ranks.run(2, interrupted, "own", tmp_path, (1, 2))
    for _ in range(2):  # nothing is lost between them
        (found, *_) = ranks.run(2, accounted, "own", tmp_path)
        assert found["discarded"] == (3 + 2) * 12
    assert found["worlds"] == [(1, 0, 2)]


@pytest.mark.parametrize(("kind", "option"), [("own", "--output"), ("shared", "--checkpoints")])
def test_one_rank_that_is_asked_to_stop_stops_all_with_a_checkpoint_which_no_other_training_takes(
    kind: Kind, option: str, tmp_path: Path
) -> None:
    for result in ranks.run(3, start, kind, tmp_path, None, OPTIONS, {1: signal.SIGTERM}):
        assert isinstance(result, Stopped)
        assert str(result) == "stopped by signal 15, which rank 1 received, after a step and a checkpoint"
    for result in ranks.run(2, start, kind, tmp_path, None, OPTIONS, None, {"option lr": 0.2}):
        assert isinstance(result, Refused)
        assert "of another training: its option lr is 0.1 and now it is 0.2" in str(result)
        assert plain(str(result)).endswith(f"choose another {option}")
    assert ranks.run(3, outcome_of, kind, tmp_path) == undisturbed(3)


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("", "after a step and a checkpoint"),
        ("file/checkpoints", "after a step and without a new checkpoint"),
    ],
)
def test_it_stops_between_epochs_too_and_says_whether_there_is_a_checkpoint(
    place: str, sentence: str, tmp_path: Path
) -> None:
    """Each epoch is a single step: there is no step between two of which it could be asked."""
    (tmp_path / "file").write_text("")
    options = dataclasses.replace(OPTIONS, global_batch_size=N)
    for result in ranks.run(2, start, "own", tmp_path / place, None, options, {1: signal.SIGINT}):
        assert isinstance(result, Stopped)
        assert str(result) == f"stopped by signal 2, which rank 1 received, {sentence}"
    assert (tmp_path / checkpoint_file.file_name(2, 0)).exists() is not bool(place)


class Everywhere(CheckpointsOfRank0):
    """Saves whenever it may, and keeps all."""

    def before_batch(self) -> None:
        super().before_batch()
        self.save(wait=True)


SMALL = Training(epochs=2, global_batch_size=4, lr=0.1)


CONTRACTS: tuple[Contract, ...] = ("exact", "padded", "drop_last")


def saving(rank: int, world: int, store: Store, folder: Path, options: Training) -> None:
    """In a folder of each contract."""
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    for contract in CONTRACTS:

        def everywhere(loop: Loop, account: Account, own: Path = folder / contract) -> Rounds:
            return Everywhere(account, own, toy.objects(loop), keep=1 << 20, every=1e9)

        chosen = dataclasses.replace(options, contract=contract)
        toy.train(toy.task(), chosen, toy.samples(10, 1), toy.samples(5, 2), everywhere)


def from_each(rank: int, world: int, store: Store, folder: Path, options: Training) -> dict[Contract, list[Any]]:
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    found: dict[Contract, list[Any]] = {contract: [] for contract in CONTRACTS}
    for contract in CONTRACTS:
        for path in sorted((folder / contract).glob("*.checkpoint")):
            alone = folder / f"{contract} {path.name} for {world}"
            if rank == 0:
                alone.mkdir()
                shutil.copy(path, alone)
            dist.barrier()
            chosen = dataclasses.replace(options, contract=contract)
            with toy.proved() as phases:
                fitted = toy.train(toy.task(), chosen, toy.samples(10, 1), toy.samples(5, 2), toy.saving_to(alone))
            found[contract].append((phases, fitted.lines, fitted.last))
    return found


@pytest.mark.parametrize(("before", "batch"), [(4, 11), (3, 4)])
def test_from_any_checkpoint_any_number_of_ranks_keeps_the_contract(before: int, batch: int, tmp_path: Path) -> None:
    """Also where samples are repeated or left out, and a checkpoint may come among them."""
    options = dataclasses.replace(SMALL, global_batch_size=batch)
    assert ranks.run(before, saving, tmp_path, options) == [None] * before
    for after in (3, 1):
        found = ranks.run(after, from_each, tmp_path, options)[0]
        assert all(found.values())
        for phases, lines, last in (each for of_contract in found.values() for each in of_contract):
            assert all(line["lost"] == line["duplicated"] == 0 for proof in phases for line in proof)
            assert [(line["phase"], line["epoch"]) for line in lines] == [
                ("train", 1),
                ("test", 1),
                ("train", 2),
                ("test", 2),
            ]
            for name, phase in last["phases"].items():
                expected = run_summary.RunSummary.parse(last).expected(name)
                assert (phase["consumed"], phase["digest"]) == (expected[0], str(expected[1]))


def with_something_else_in_it(rank: int, world: int, store: Store, folder: Path) -> Any:
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    if rank == 0:
        checkpoint_file.save(folder, 1, 1, {"model": 1}, 2)
    return toy.train(toy.task(), SMALL, toy.samples(10, 1), toy.samples(5, 2), toy.saving_to(folder))


def test_what_rank_0_cannot_take_up_ends_all_ranks(tmp_path: Path) -> None:
    for result in ranks.run(2, with_something_else_in_it, tmp_path / "folder"):
        assert isinstance(result, Refused)
        assert "cannot be taken up: KeyError: 'kinds'" in str(result)
    path = tmp_path / "folder" / checkpoint_file.file_name(9, 9)
    path.symlink_to("/proc/self/mem")  # to read it is an I/O error
    for result in ranks.run(2, with_something_else_in_it, tmp_path / "folder"):
        assert isinstance(result, Volume)
        assert "cannot be read: [Errno 5]" in str(result)


def test_a_training_whose_checkpoints_are_all_damaged_does_not_begin_anew(tmp_path: Path) -> None:
    ranks.run(2, start, "own", tmp_path)
    files = sorted(tmp_path.glob("*.checkpoint"))
    for path in files:
        path.write_bytes(path.read_bytes()[:-1])
    for result in ranks.run(2, outcome_of, "own", tmp_path):
        assert isinstance(result, Refused)
        assert f"no checkpoint in {tmp_path} can be taken up" in str(result)
        assert all(f"{path}: it is cut off" in str(result) for path in files)
    for path in files:
        path.unlink()
    assert ranks.run(2, outcome_of, "own", tmp_path) == undisturbed(2)


def test_a_folder_that_cannot_be_written_does_not_end_the_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert ranks.run(2, outcome_of, "own", tmp_path / "file" / "checkpoints") == undisturbed(2)


def test_the_best_epoch_s_checkpoint_is_kept(tmp_path: Path) -> None:
    ranks.run(2, interrupted, "own", tmp_path, (3 * (STEPS - 1) - 1, 0))
    found = ranks.run(2, outcome_of, "own", tmp_path)
    best = max(found[0]["epochs"], key=lambda epoch: epoch.correct)
    kept = {path.name for path in tmp_path.glob("*.checkpoint")}
    assert checkpoint_file.file_name(best.epoch + 1, 0) in kept
    assert len(kept) <= 3


def test_a_task_goes_on_from_an_object_store_in_another_output_folder(
    environment: dict[str, str],
    tmp_path: Path,
    store: objectstore.Store,
) -> None:
    inside, url = environment | store.environment(), store.url("run")
    first = alone(inside, [*QUICK, "--checkpoints", url], FEW)
    assert first.returncode == 0, first.stderr
    second = alone(inside | {"TORCHTALLY_OUTPUT": str(tmp_path / "other")}, [*QUICK, "--checkpoints", url], FEW)
    assert second.returncode == 0, second.stderr
    saved, resumed = reported(first.stdout, events.Saved)[-1], reported(second.stdout, events.Resumed)[0]
    assert saved.path.startswith(f"{url}/")
    assert (resumed.checkpoint, resumed.epoch, resumed.discarded) == (saved.path, 2, 0)
    (before,), (after,) = tallies(first.stdout)[1], tallies(second.stdout)[1]
    assert (before["phases"], before["model"]) == (after["phases"], after["model"])  # nothing was left to train
    assert not (tmp_path / "output/checkpoints").exists()
    for proof, checkpoint in (
        (tmp_path / "output", saved),
        (tmp_path / "other", reported(second.stdout, events.Saved)[-1]),
    ):
        found = proofs.read(proof / "proof.json")
        assert found.predicate.checkpoint == f"{checkpoint.path}/manifest.json"
        assert list(found.files) == ["model.pt"]
