"""A training that is interrupted and taken up again ends as one that was not: the same weights, every sample once."""

import dataclasses
import hashlib
import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
import toy
from torch import nn
from torch.distributed.distributed_c10d import Store

from torchtally import checkpoint, loop
from torchtally.checkpoint import State
from torchtally.course import Course
from torchtally.errors import Refused, Stopped
from torchtally.keeper import Keeper, resume
from torchtally.options import Training

N = 105  # the last step has 9 samples: uneven, and two or more for each of four ranks
OPTIONS = Training(epochs=3, global_batch_size=12, lr=0.1, contract="exact", seed=3)
STEPS = -(-N // 12)
FACTS = {"seed": 3}


class Interrupted(Exception):
    """As if the pod had been killed."""


class Interrupting(Keeper):
    """Saves after a number of steps, makes some more, and is gone."""

    def __init__(self, folder: Path, save_after: int, more: int) -> None:
        super().__init__(folder, FACTS, toy.CPU, 2, 1e9)
        self._save_after, self._end_after, self._made = save_after, save_after + more, 0

    def after_step(self, state: Callable[[], State]) -> None:
        self._made += 1
        if self._made == self._save_after:
            self.save(state)
        if self._made == self._end_after:
            raise Interrupted


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


def fit(rank: int, world: int, keeper: Keeper, state: State | None = None) -> Course:
    run = dataclasses.replace(toy.run(rank, world, OPTIONS), attempt=state["attempt"] + 1 if state else 0)
    return loop.fit(TASK, OPTIONS, run, toy.samples(N, 1), toy.samples(31, 2), toy.CPU, keeper, state)


def outcome(course: Course) -> dict[str, Any]:
    """What must not depend on interruptions."""
    buffer = io.BytesIO()
    for value in (*course.model.state_dict().values(), *course.optimizer.state_dict()["state"].values()):
        torch.save(value, buffer)
    lines = [{key: value for key, value in line.items() if key != "attempt"} for line in course.lines]
    epochs = [dataclasses.replace(epoch, samples_per_second=0) for epoch in course.epochs]
    return {"hash": hashlib.sha256(buffer.getvalue()).hexdigest(), "lines": lines, "epochs": epochs}


def undisturbed(rank: int, world: int, store: Store) -> dict[str, Any]:
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    return outcome(fit(rank, world, Keeper(None, {}, toy.CPU, 2, 300)))


def interrupted(rank: int, world: int, store: Store, folder: Path, save_after: int, more: int) -> None:
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    with pytest.raises(Interrupted):
        fit(rank, world, Interrupting(folder, save_after, more), resume(folder, FACTS, toy.CPU))


def resumed(rank: int, world: int, store: Store, folder: Path) -> dict[str, Any]:
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    state = resume(folder, FACTS, toy.CPU)
    assert state is not None
    return outcome(fit(rank, world, Keeper(folder, FACTS, toy.CPU, 2, 300), state))


def everywhere(rank: int, world: int, store: Store, folder: Path) -> list[dict[str, Any]]:
    """Interrupted at each step of the first two epochs."""
    found = []
    for step in range(1, 2 * (STEPS - 1) + 1):
        interrupted(rank, world, store, folder, step, step % 3)
        found.append(resumed(rank, world, store, folder))
        dist.barrier()
        if rank == 0:
            shutil.rmtree(folder)
    return found


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_interrupted_anywhere_it_ends_with_the_same_bits(world: int, tmp_path: Path) -> None:
    expected = ranks.run(world, undisturbed)
    assert all(line["lost"] == line["doubled"] == 0 for line in expected[0]["lines"])
    for rank, found in enumerate(ranks.run(world, everywhere, tmp_path / "checkpoints")):
        assert not isinstance(found, Exception), found
        assert found == [expected[rank]] * len(found)


def test_new_processes_take_it_up_again_and_again(tmp_path: Path) -> None:
    expected = ranks.run(3, undisturbed)
    for save_after, more in ((2, 3), (STEPS, 0), (1, 0)):
        assert ranks.run(3, interrupted, tmp_path, save_after, more) == [None] * 3
    assert ranks.run(3, resumed, tmp_path) == expected


@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 4), (4, 1)])
def test_another_number_of_ranks_goes_on_where_the_others_stood(before: int, after: int, tmp_path: Path) -> None:
    step = 3
    assert ranks.run(before, interrupted, tmp_path, step, 1) == [None] * before
    found = ranks.run(after, resumed, tmp_path)
    lines = [line for line in found[0]["lines"] if (line["phase"], line["epoch"]) == ("train", 1)]
    assert [line["start"] for line in lines] == [step * 12] * (after + 1)
    assert lines[-1]["consumed"] == N
    assert sum(line["consumed"] for line in lines[:-1]) == N - step * 12
    assert all(line["lost"] == line["doubled"] == 0 for line in found[0]["lines"])


def stopping(rank: int, world: int, store: Store, folder: Path) -> Any:
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    keeper = Keeper(folder, FACTS, toy.CPU, 2, 1e9)
    if rank == 1:
        keeper._asked_to_stop(15, None)
    return fit(rank, world, keeper)


def test_one_rank_that_is_asked_to_stop_stops_all_after_the_same_step(tmp_path: Path) -> None:
    for result in ranks.run(3, stopping, tmp_path):
        assert isinstance(result, Stopped)
        assert result.number == 15
    expected = ranks.run(3, undisturbed)
    assert ranks.run(3, resumed, tmp_path) == expected


def other_facts(rank: int, world: int, store: Store, folder: Path) -> Any:
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    return resume(folder, {"seed": 4}, toy.CPU)


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
    return outcome(fit(rank, world, Keeper(folder, FACTS, toy.CPU, 2, 1e-9)))


def test_the_best_epoch_s_checkpoint_is_kept(tmp_path: Path) -> None:
    ranks.run(2, interrupted, tmp_path, 3 * (STEPS - 1) - 1, 0)
    found = ranks.run(2, resumed, tmp_path)
    best = max(found[0]["epochs"], key=lambda epoch: epoch.correct)
    kept = {path.name for path in tmp_path.iterdir()}
    assert checkpoint.name(best.epoch + 1, 0) in kept
    assert len(kept) <= 3
