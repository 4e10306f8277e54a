"""A training that is interrupted and taken up again ends as one that was not: the same weights, every sample once."""

import dataclasses
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
import toy
from interrupted import FACTS, Interrupted, Interrupting, outcome
from torch import nn
from torch.distributed.distributed_c10d import Store

from torchtally.errors import Refused, Stopped, Volume
from torchtally.options import AllReduce, Training
from torchtally.proof import run_summary
from torchtally.proof.contract import Contract
from torchtally.training import checkpoint_file
from torchtally.training.checkpoint_file import State
from torchtally.training.checkpointer import Checkpointer, resume
from torchtally.training.train_state import TrainState

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


def fit(
    rank: int, world: int, checkpointer: Checkpointer, state: State | None = None, options: Training = OPTIONS
) -> TrainState:
    run = dataclasses.replace(toy.run(rank, world, OPTIONS), attempt=state["attempt"] + 1 if state else 0)
    return toy.train(TASK, options, run, toy.samples(N, 1), toy.samples(31, 2), checkpointer, state)


def undisturbed(rank: int, world: int, store: Store, options: Training = OPTIONS) -> dict[str, Any]:
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    return outcome(fit(rank, world, Checkpointer(None, {}, 2, 300), options=options))


def interrupted(
    rank: int, world: int, store: Store, folder: Path, save_after: int, more: int, options: Training = OPTIONS
) -> None:
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    with pytest.raises(Interrupted):
        fit(rank, world, Interrupting(folder, save_after, more), resume(folder, FACTS), options)


def taken_up(rank: int, world: int, store: Store, folder: Path, options: Training = OPTIONS) -> TrainState:
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    state = resume(folder, FACTS)
    assert state is not None
    return fit(rank, world, Checkpointer(folder, FACTS, 2, 300), state, options)


def resumed(rank: int, world: int, store: Store, folder: Path, options: Training = OPTIONS) -> dict[str, Any]:
    return outcome(taken_up(rank, world, store, folder, options))


def everywhere(rank: int, world: int, store: Store, folder: Path, options: Training) -> list[dict[str, Any]]:
    """Interrupted at each step of the first two epochs."""
    found = []
    for step in range(1, 2 * (STEPS - 1) + 1):
        interrupted(rank, world, store, folder, step, step % 3, options)
        found.append(resumed(rank, world, store, folder, options))
        dist.barrier()
        if rank == 0:
            shutil.rmtree(folder)
    return found


@pytest.mark.parametrize(
    ("world", "all_reduce"),
    [
        (1, "float32"),
        (3, "bfloat16"),
        pytest.param(2, "float32", marks=pytest.mark.nightly),
        pytest.param(3, "float32", marks=pytest.mark.nightly),
        pytest.param(4, "float32", marks=pytest.mark.nightly),
    ],
)
def test_interrupted_anywhere_it_ends_with_the_same_bits(world: int, all_reduce: AllReduce, tmp_path: Path) -> None:
    options = dataclasses.replace(OPTIONS, all_reduce=all_reduce)
    expected = ranks.run(world, undisturbed, options)
    assert all(line["lost"] == line["doubled"] == 0 for line in expected[0]["lines"])
    for rank, found in enumerate(ranks.run(world, everywhere, tmp_path / "checkpoints", options)):
        assert not isinstance(found, Exception), found
        assert found == [expected[rank]] * len(found)


def test_new_processes_take_it_up_again_and_again(tmp_path: Path) -> None:
    expected = ranks.run(3, undisturbed)
    for save_after, more in ((2, 3), (STEPS, 0), (1, 0)):
        assert ranks.run(3, interrupted, tmp_path, save_after, more) == [None] * 3
    assert ranks.run(3, resumed, tmp_path) == expected


def accounted(rank: int, world: int, store: Store, folder: Path) -> dict[str, Any]:
    with toy.proved() as phases:
        train_state = taken_up(rank, world, store, folder)
    return {"phases": phases, "worlds": train_state.worlds, "discarded": train_state.discarded}


@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 4), (4, 1)])
def test_another_number_of_ranks_goes_on_where_the_others_stood(before: int, after: int, tmp_path: Path) -> None:
    step = 3
    assert ranks.run(before, interrupted, tmp_path, step, 1) == [None] * before
    (found, *_) = ranks.run(after, accounted, tmp_path)
    lines = found["phases"][0]
    assert {(line["phase"], line["epoch"], line["start"]) for line in lines} == {("train", 1, step * 12)}
    assert lines[-1]["consumed"] == N
    assert sum(line["consumed"] for line in lines[:-1]) == N - step * 12
    assert all(line["lost"] == line["doubled"] == 0 for lines in found["phases"] for line in lines)
    assert found["worlds"] == [(1, 0, before), (1, step * 12, after)]


def test_what_a_crash_threw_away_is_counted_once(tmp_path: Path) -> None:
    ranks.run(2, interrupted, tmp_path, 2, 3)
    ranks.run(2, interrupted, tmp_path, 1, 2)
    (found, *_) = ranks.run(2, accounted, tmp_path)
    assert found["discarded"] == (3 + 2) * 12
    (again, *_) = ranks.run(2, accounted, tmp_path)  # nothing was lost since
    assert again["discarded"] == (3 + 2) * 12
    assert again["worlds"] == [(1, 0, 2)]


def test_garbled_progress_counts_nothing(tmp_path: Path) -> None:
    ranks.run(1, interrupted, tmp_path, 1, 2)
    (tmp_path / "reached").write_bytes(b"%10d %20d\n" % (9, 99999999901791))
    (found,) = ranks.run(1, accounted, tmp_path)
    assert found["discarded"] == 0


def test_the_number_of_ranks_may_change_again_and_again(tmp_path: Path) -> None:
    # The third takes up 33 of 69 samples: 3 steps, 2 of them before the epoch's end, and 4 of the next epoch.
    for world, save_after in ((4, 2), (2, 1), (3, 2 + 4)):
        assert ranks.run(world, interrupted, tmp_path, save_after, 1) == [None] * world
    (found, *_) = ranks.run(1, accounted, tmp_path)
    assert all(line["lost"] == line["doubled"] == 0 for lines in found["phases"] for line in lines)
    assert found["worlds"] == [(1, 0, 4), (1, 24, 2), (1, 36, 3), (2, 48, 1)]


def stopping(rank: int, world: int, store: Store, folder: Path) -> Any:
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    checkpointer = Checkpointer(folder, FACTS, 2, 1e9)
    if rank == 1:
        checkpointer._asked_to_stop(15, None)
    return fit(rank, world, checkpointer)


def test_one_rank_that_is_asked_to_stop_stops_all_after_the_same_step(tmp_path: Path) -> None:
    for result in ranks.run(3, stopping, tmp_path):
        assert isinstance(result, Stopped)
        assert result.number == 15
    expected = ranks.run(3, undisturbed)
    assert ranks.run(3, resumed, tmp_path) == expected


def stopped_by_ctrl_c(rank: int, world: int, store: Store, folder: Path) -> Any:
    """Each epoch is a single step: there is no step between two of which it could be asked."""
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    checkpointer = Checkpointer(folder, FACTS, 2, 1e9)
    checkpointer.listen()
    if rank == 1:
        signal.raise_signal(signal.SIGINT)
    run = toy.run(rank, world, OPTIONS)
    options = dataclasses.replace(OPTIONS, global_batch_size=N)
    return toy.train(TASK, options, run, toy.samples(N, 1), toy.samples(31, 2), checkpointer)


def test_it_stops_between_epochs_too(tmp_path: Path) -> None:
    for result in ranks.run(2, stopped_by_ctrl_c, tmp_path):
        assert isinstance(result, Stopped)
        assert str(result) == "stopped by signal 2, after a step and a checkpoint"
    assert (tmp_path / checkpoint_file.file_name(2, 0)).exists()


def test_a_stop_without_a_checkpoint_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for result in ranks.run(2, stopped_by_ctrl_c, tmp_path / "file" / "checkpoints"):
        assert str(result) == "stopped by signal 2, after a step and without a checkpoint, which could not be written"


class Everywhere(Checkpointer):
    """Saves whenever it may, and keeps all."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, FACTS, 1 << 20, 1e9)

    def after_step(self, train_state: TrainState) -> None:
        self.save(train_state)


SMALL = Training(epochs=2, global_batch_size=4, lr=0.1)


def saving(rank: int, world: int, store: Store, folder: Path, options: Training) -> list[Any]:
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    with toy.proved() as phases:
        run = toy.run(rank, world, options)
        toy.train(toy.task(), options, run, toy.samples(10, 1), toy.samples(5, 2), Everywhere(folder))
    return phases


def from_each(rank: int, world: int, store: Store, folder: Path, options: Training) -> list[Any]:
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    found = []
    for path in sorted(folder.glob("*.checkpoint")):
        alone = folder / f"{path.name} for {world}"
        if rank == 0:
            alone.mkdir()
            shutil.copy(path, alone)
        dist.barrier()
        state = resume(alone, FACTS)
        assert state is not None
        run = toy.run(rank, world, options)
        checkpointer = Checkpointer(alone, FACTS, 2, 300)
        with toy.proved() as phases:
            train_state = toy.train(
                toy.task(), options, run, toy.samples(10, 1), toy.samples(5, 2), checkpointer, state
            )
        last = run_summary.line(train_state.lines, train_state.worlds, None, 0)
        found.append((phases, train_state.lines, last))
    return found


@pytest.mark.parametrize("contract", ["exact", "padded", "drop_last"])
@pytest.mark.parametrize(("before", "batch"), [(4, 11), (3, 4)])
def test_from_any_checkpoint_any_number_of_ranks_keeps_the_contract(
    contract: Contract, before: int, batch: int, tmp_path: Path
) -> None:
    """Also where samples are repeated or left out, and a checkpoint may come among them."""
    options = dataclasses.replace(SMALL, contract=contract, global_batch_size=batch)
    ranks.run(before, saving, tmp_path, options)
    for after in (3, 1):
        found = ranks.run(after, from_each, tmp_path, options)[0]
        assert found
        for phases, lines, last in found:
            assert all(line["lost"] == line["doubled"] == 0 for proof in phases for line in proof)
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
    return resume(folder, FACTS)


def test_what_rank_0_cannot_take_up_ends_all_ranks(tmp_path: Path) -> None:
    for result in ranks.run(2, with_something_else_in_it, tmp_path / "folder"):
        assert isinstance(result, Refused)
        assert "cannot be taken up: KeyError: 'facts'" in str(result)
    path = tmp_path / "folder" / checkpoint_file.file_name(9, 9)
    path.symlink_to("/proc/self/mem")  # to read it is an I/O error
    for result in ranks.run(2, with_something_else_in_it, tmp_path / "folder"):
        assert isinstance(result, Volume)
        assert "cannot be read: [Errno 5]" in str(result)


def other_facts(rank: int, world: int, store: Store, folder: Path) -> Any:
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    return resume(folder, {"seed": 4})


def test_a_checkpoint_of_another_training_is_refused_with_both_values(tmp_path: Path) -> None:
    ranks.run(2, interrupted, tmp_path, 2, 0)
    for result in ranks.run(2, other_facts, tmp_path):
        assert isinstance(result, Refused)
        assert "its seed is 3 and now it is 4" in str(result)


def test_a_folder_that_cannot_be_written_does_not_end_the_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = ranks.run(2, unwritable, tmp_path / "file" / "checkpoints")
    assert found == ranks.run(2, undisturbed)


def unwritable(rank: int, world: int, store: Store, folder: Path) -> dict[str, Any]:
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    return outcome(fit(rank, world, Checkpointer(folder, FACTS, 2, 1e-9)))


def test_the_best_epoch_s_checkpoint_is_kept(tmp_path: Path) -> None:
    ranks.run(2, interrupted, tmp_path, 3 * (STEPS - 1) - 1, 0)
    found = ranks.run(2, resumed, tmp_path)
    best = max(found[0]["epochs"], key=lambda epoch: epoch.correct)
    kept = {path.name for path in tmp_path.glob("*.checkpoint")}
    assert checkpoint_file.file_name(best.epoch + 1, 0) in kept
    assert len(kept) <= 3
