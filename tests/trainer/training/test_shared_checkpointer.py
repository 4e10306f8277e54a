"""A training whose checkpoints all ranks write (--checkpoints) ends after an interruption as one that had none."""

import dataclasses
import logging
import os
import signal
import subprocess
from pathlib import Path
from typing import Any, TypeVar

import objectstore
import proofs
import pytest
import ranks
import torch.distributed as dist
import toy
from accounts import tallies
from commands import QUICK, alone
from interrupted import Interrupted, outcome
from test_checkpointer import OPTIONS, STEPS, TASK, N, undisturbed
from torch.distributed.distributed_c10d import Store

from torchtally import events
from torchtally.errors import Refused, Stopped
from torchtally.log import log
from torchtally.training import loop
from torchtally.training.shared_checkpointer import SharedCheckpointer
from torchtally.training.train_state import TrainState

FACTS = {"task": "toy", "seed": 3}
Kind = TypeVar("Kind", bound=events.Event)


class Interrupting(SharedCheckpointer):
    """Saves after a number of steps, makes some more, and is gone. Without numbers, it is not interrupted."""

    interruption: tuple[int, int] | None = None
    made = 0

    def after_step(self, train_state: TrainState) -> None:
        super().after_step(train_state)
        if self.interruption:
            self.made += 1
            save_after, more = self.interruption
            if self.made == save_after:
                self.save(train_state)
            if self.made == save_after + more:
                raise Interrupted


def start(
    rank: int, world: int, store: Store, folder: Path, interruption: tuple[int, int] | None = None, stops: bool = False
) -> TrainState:
    """One start of the training, of the ranks of one process group."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    built = loop.build(TASK, OPTIONS, toy.CPU)
    with Interrupting(str(folder), FACTS, f"pod-{rank}", *built, 2, 1e9) as checkpointer:
        state = checkpointer.resume()
        checkpointer.interruption = interruption
        if stops and rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        run = dataclasses.replace(toy.run(rank, world, OPTIONS), attempt=state["attempt"] + 1 if state else 0)
        model, optimizer = built
        data = toy.samples(N, 1), toy.samples(31, 2)
        return toy.train(TASK, OPTIONS, run, *data, checkpointer, state, model=model, optimizer=optimizer)


def everywhere(rank: int, world: int, store: Store, folder: Path) -> list[dict[str, Any]]:
    """Interrupted in the first epoch, at its last step, and in the second."""
    found = []
    for at, save_after in enumerate((1, STEPS - 1, STEPS + 1)):
        with pytest.raises(Interrupted):
            start(rank, world, store, folder / str(at), (save_after, at))
        found.append(outcome(start(rank, world, store, folder / str(at))))
    return found


def test_interrupted_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    expected = ranks.run(2, undisturbed)
    for rank, found in enumerate(ranks.run(2, everywhere, tmp_path)):
        assert not isinstance(found, Exception), found
        assert found == [expected[rank]] * 3


def changed(rank: int, world: int, store: Store, folder: Path) -> Any:
    if world == 3:
        with pytest.raises(Interrupted):
            start(rank, world, store, folder, (2, 1))
        return None
    with toy.proved() as phases:
        worlds = start(rank, world, store, folder).worlds
    return {"phases": phases, "worlds": worlds}


def test_another_number_of_ranks_goes_on_where_the_others_stood(tmp_path: Path) -> None:
    ranks.run(3, changed, tmp_path)
    (found, *_) = ranks.run(2, changed, tmp_path)
    assert all(line["lost"] == line["doubled"] == 0 for lines in found["phases"] for line in lines)
    assert found["worlds"] == [(1, 0, 3), (1, 24, 2)]


def refused_and_stopped(rank: int, world: int, store: Store, folder: Path) -> list[str]:
    warned: list[str] = []
    log.addHandler(handler := logging.Handler())
    handler.emit = lambda record: warned.append(record.getMessage())  # type: ignore[method-assign]
    with pytest.raises(Stopped) as stopped:
        start(rank, world, store, folder, stops=True)
    built = loop.build(TASK, OPTIONS, toy.CPU)
    with (
        pytest.raises(Refused) as refused,
        SharedCheckpointer(str(folder), FACTS | {"seed": 4}, "pod", *built, 2, 1e9) as checkpointer,
    ):
        checkpointer.resume()
    again = start(rank, world, store, folder)
    return [str(stopped.value), str(refused.value), f"{again.run.attempt} {again.discarded}", *warned]


def test_a_signal_stops_all_ranks_after_a_checkpoint_which_another_training_does_not_take(tmp_path: Path) -> None:
    for stopped, refused, resumed, *_ in ranks.run(2, refused_and_stopped, tmp_path / "folder"):
        assert stopped == "stopped by signal 15, after a step and a checkpoint"
        assert f"the checkpoint in {tmp_path}/folder is of another training: its seed is 3 and now it is 4" in refused
        assert refused.endswith("choose another --checkpoints")
        assert resumed == "1 0"


def test_a_task_goes_on_from_an_object_store_in_another_output_folder(
    environment: dict[str, str],
    tmp_path: Path,
    store: objectstore.Store,
) -> None:
    inside, url = environment | store.environment(), store.url("run")
    first = alone(inside, [*QUICK, "--checkpoints", url])
    assert first.returncode == 0, first.stderr
    second = alone(inside | {"TORCHTALLY_OUTPUT": str(tmp_path / "other")}, [*QUICK, "--checkpoints", url])
    assert second.returncode == 0, second.stderr
    saved, resumed = of(events.Saved, first)[-1], of(events.Resumed, second)[0]
    assert saved.path.startswith(f"{url}/")
    assert (resumed.checkpoint, resumed.epoch, resumed.discarded) == (saved.path, 2, 0)
    (before,), (after,) = tallies(first.stdout)[1], tallies(second.stdout)[1]
    assert before == after  # nothing was left to train
    assert not (tmp_path / "output/checkpoints").exists()
    for proof, checkpoint in ((tmp_path / "output", saved), (tmp_path / "other", of(events.Saved, second)[-1])):
        found = proofs.read(proof / "proof.json")
        assert found.predicate.checkpoint == f"{checkpoint.path}/manifest.json"
        assert list(found.files) == ["model.pt"]


def of(kind: type[Kind], ended: subprocess.CompletedProcess[str]) -> list[Kind]:
    """The events of a kind."""
    return [each.event for each in events.in_lines(ended.stdout.splitlines()) if isinstance(each.event, kind)]
