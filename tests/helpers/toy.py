"""A task small enough for eight ranks on two cores, through the same loop as the real one."""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import Store

from torchtally import Account
from torchtally.accounting.ledger.state import PhaseState
from torchtally.accounting.ledger.tally import Run, Tally
from torchtally.accounting.order.schedule import Schedule
from torchtally.accounting.proofs import kept_lines, proving
from torchtally.accounting.proofs.proving import Proof
from torchtally.accounting.run import attempt, counting, restart
from torchtally.checkpoints.coordination import Rounds
from torchtally.checkpoints.of_rank_0 import CheckpointsOfRank0
from torchtally.distributed.shared_memory import SharedGradients
from torchtally.options import Training
from torchtally.training.loop import Loop
from torchtally.training.results import Epoch
from torchtally.training.task import Samples, Task

CPU = torch.device("cpu")
Saving = Callable[[Loop, Account], Rounds]


def samples(n: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Samples:
    """Four features; the label is whether the first two add up to more than 0."""
    random = torch.Generator().manual_seed(seed)
    features = torch.randn(n, 4, generator=random, dtype=dtype)
    return Samples(features, (features[:, 0] + features[:, 1] > 0).long())


def task(dtype: torch.dtype = torch.float32) -> Task:
    return Task(
        load=lambda folder, cache: (samples(100), samples(50)),
        fingerprint="sha256:toy",
        model=lambda options: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(dtype),
        inputs=lambda features: features,
        optimizer=lambda parameters, options: torch.optim.SGD(parameters, lr=options.lr, fused=True),
    )


def run(rank: int, world: int, options: Training) -> Run:
    return Run(
        run="test",
        attempt=0,
        pod=f"pod-{rank}",
        task="toy",
        plan={"train": options.epochs, "test": options.epochs},
        rank=rank,
        world=world,
        seed=options.seed,
        data="sha256:toy",
    )


@dataclass(frozen=True)
class Fitted:
    """What came of a training on this rank."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    epochs: list[Epoch]
    lines: list[Mapping[str, Any]]  # on rank 0: of all ranks together
    last: dict[str, Any]  # the last line
    train: PhaseState
    discarded: int


@contextmanager
def account(options: Training, name: str = "toy") -> Iterator[Account]:
    """That of one start of the run `test`, as if in a process of its own."""
    os.environ |= {"TORCHTALLY_RUN": "test"}
    kept_lines._kept.clear()
    attempt._completed.clear()
    plan = {"train": options.epochs, "test": options.epochs}
    with (
        patch.object(restart, "_id", lambda run, number: run),
        Account(name, plan=plan, seed=options.seed) as account,
    ):
        yield account


def train(
    task: Task,
    options: Training,
    train: Samples,
    test: Samples,
    saving: Saving,
    facts: Mapping[str, Any] | None = None,
    memory: SharedGradients | None = None,
) -> Fitted:
    """The loop, on this rank's CPU, from the newest checkpoint on."""
    with account(options) as made:
        loop = Loop(made, task, options, train, test, facts or {}, memory)
        made._counting.checkpoints = saving(loop, made)
        loop.fit(made._counting.checkpoints)
    assert made.last_line
    return Fitted(
        model=loop.model,
        optimizer=loop.optimizer,
        epochs=loop.results.epochs,
        lines=kept_lines.of_all_ranks("test"),
        last=made.last_line,
        train=made._progress.phases["train"],
        discarded=made.discarded,
    )


def objects(loop: Loop) -> dict[str, Any]:
    """Those of its checkpoints."""
    return {"model": loop.model, "optimizer": loop.optimizer, "results": loop.results}


def saving_to(folder: Path, *, keep: int = 2) -> Saving:
    """Checkpoints of rank 0, none but those of each epoch."""
    return lambda loop, account: CheckpointsOfRank0(account, folder, objects(loop), keep=keep, every=1e9)


@contextmanager
def saving_nowhere() -> Iterator[Saving]:
    """The same, of which nothing is left."""
    with tempfile.TemporaryDirectory() as folder:
        yield saving_to(Path(folder))


@contextmanager
def proved() -> Iterator[list[list[dict[str, Any]]]]:
    """The lines of each proof that the account makes meanwhile."""
    found: list[list[dict[str, Any]]] = []

    def prove(tally: Tally, *arguments: Any, **named: Any) -> Proof:
        proof = proving.prove(tally, *arguments, **named)
        found.append(proof.lines)
        return proof

    with patch.object(counting, "prove", prove):
        yield found


def fit(
    rank: int,
    world: int,
    store: Store,
    options: Training,
    n_train: int,
    n_test: int,
    dtype: torch.dtype = torch.float32,
    toy: Task | None = None,
    memory: SharedGradients | None = None,
) -> dict[str, Any]:
    """Train the toy on this rank: its weights, and the tally lines of all ranks for each phase."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    train_samples, test_samples = samples(n_train, 1, dtype), samples(n_test, 2, dtype)
    with proved() as phases, saving_nowhere() as saving:
        fitted = train(toy or task(dtype), options, train_samples, test_samples, saving, memory=memory)
    return {
        "weights": {name: value.tolist() for name, value in fitted.model.state_dict().items()},
        "phases": phases,
        "correct": [epoch.correct for epoch in fitted.epochs],
    }


# Samplers with a fault that people really have: each yields this rank's indices of each step.


def right(schedule: Schedule) -> Iterator[Tensor]:
    return map(torch.from_numpy, schedule.arrays())


def rank_local_shuffle(schedule: Schedule) -> Iterator[Tensor]:
    """Each rank shuffles by itself and takes its share: all counts are right, a third of the data is never seen."""
    shard = schedule.shard
    random = torch.Generator().manual_seed(1000 * shard.epoch + shard.rank)
    yield from torch.randperm(shard.n, generator=random)[: shard.size].split(schedule.batch // shard.world)


def two_swapped_for_their_neighbours(schedule: Schedule) -> Iterator[Tensor]:
    """One index goes up by one and another down by one: the count and the sum of indices stay right."""
    whole = torch.cat(list(right(schedule)))
    if schedule.shard.rank == 0:
        up, down = whole.argsort()[[len(whole) // 4, len(whole) // 2]]
        whole[up] += 1
        whole[down] -= 1
    yield from whole.split(schedule.batch // schedule.shard.world)


def distributed_sampler(schedule: Schedule) -> Iterator[Tensor]:
    """torch's own, which pads to a multiple of the world size."""
    from torch.utils.data.distributed import DistributedSampler

    shard = schedule.shard
    sampler: Any = DistributedSampler(range(shard.n), shard.world, shard.rank, shuffle=True, seed=shard.seed)  # type: ignore[arg-type]
    sampler.set_epoch(shard.epoch)
    yield from torch.tensor(list(sampler)).split(schedule.batch // shard.world)


def skips_a_batch(schedule: Schedule) -> Iterator[Tensor]:
    for step, batch in enumerate(right(schedule)):
        if step != 1:
            yield batch


def repeats_a_batch(schedule: Schedule) -> Iterator[Tensor]:
    for step, batch in enumerate(right(schedule)):
        yield batch
        if step == 1:
            yield batch


def never_sets_the_epoch(schedule: Schedule) -> Iterator[Tensor]:
    """Every epoch in the order of the first one."""
    yield from right(replace(schedule, shard=replace(schedule.shard, epoch=1)))


def counts_from_the_end(schedule: Schedule) -> Iterator[Tensor]:
    """Index -1, which a tensor takes for its last row."""
    for step, batch in enumerate(right(schedule)):
        yield batch - batch.max() - 1 if step == 0 and schedule.shard.rank == 1 else batch
