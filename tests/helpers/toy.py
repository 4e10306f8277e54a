"""A task small enough for eight ranks on two cores, through the same loop as the real one."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import Store

from torchtally.accounting.ledger.tally import Phase, Run, Tally
from torchtally.accounting.proofs import proving
from torchtally.accounting.proofs.proving import Proof
from torchtally.checkpoints.rounds import Rounds
from torchtally.distributed.shared_memory import SharedGradients
from torchtally.monitoring.callback import Callback
from torchtally.options import Training
from torchtally.training import loop
from torchtally.training.batches import Batches, batches
from torchtally.training.checkpointer import Checkpointer
from torchtally.training.task import Samples, Task
from torchtally.training.train_state import TrainState

CPU = torch.device("cpu")


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


def train(
    task: Task,
    options: Training,
    run: Run,
    train: Samples,
    test: Samples,
    saving: Callable[[TrainState], Rounds],
    facts: Mapping[str, Any] | None = None,
    place: tuple[str, str] = ("", "--output"),
    **more: Any,
) -> TrainState:
    """The loop, on this rank's CPU, from the newest checkpoint on."""
    model, optimizer = loop.build(task, options, CPU)
    train_state = TrainState(run, model, optimizer, facts=facts or {}, place=place)
    checkpointer = saving(train_state)
    checkpointer.resume()
    found: dict[str, Any] = {"device": CPU, "checkpointer": checkpointer, **more}
    loop.Loop(task=task, options=options, train_state=train_state, train=train, test=test, **found).fit()
    return train_state


def saving_to(folder: Path, *, keep: int = 2) -> Callable[[TrainState], Checkpointer]:
    """Checkpoints of rank 0, none but those of each epoch."""
    return lambda train_state: Checkpointer(train_state, folder, keep=keep, every=1e9)


@contextmanager
def saving_nowhere() -> Iterator[Callable[[TrainState], Checkpointer]]:
    """The same, of which nothing is left."""
    with tempfile.TemporaryDirectory() as folder:
        yield saving_to(Path(folder))


@contextmanager
def proved() -> Iterator[list[list[dict[str, Any]]]]:
    """The lines of each proof that the loop makes meanwhile."""
    found: list[list[dict[str, Any]]] = []

    def prove(tally: Tally) -> Proof:
        proof = proving.prove(tally)
        found.append(proof.lines)
        return proof

    with patch.object(loop, "prove", prove):
        yield found


def fit(
    rank: int,
    world: int,
    store: Store,
    options: Training,
    n_train: int,
    n_test: int,
    batches: Batches = batches,
    dtype: torch.dtype = torch.float32,
    toy: Task | None = None,
    callback: Callback | None = None,
    memory: SharedGradients | None = None,
) -> dict[str, Any]:
    """Train the toy on this rank: its weights, and the tally lines of all ranks for each phase."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    train_samples, test_samples = samples(n_train, 1, dtype), samples(n_test, 2, dtype)
    with proved() as phases, saving_nowhere() as saving:
        fitted = train(
            toy or task(dtype),
            options,
            run(rank, world, options),
            train_samples,
            test_samples,
            saving,
            batches=batches,
            callback=callback,
            memory=memory,
        )
    return {
        "weights": {name: value.tolist() for name, value in fitted.model.state_dict().items()},
        "phases": phases,
        "correct": [epoch.correct for epoch in fitted.epochs],
    }


# Samplers with a fault that people really have. Each is a drop-in for batches.


def rank_local_shuffle(run: Run, phase: Phase) -> Iterator[Tensor]:
    """Each rank shuffles by itself and takes its share: all counts are right, a third of the data is never seen."""
    random = torch.Generator().manual_seed(1000 * phase.epoch + run.rank)
    own = phase.shard(run).size
    yield from torch.randperm(phase.n, generator=random)[:own].split(phase.batch // run.world)


def two_swapped_for_their_neighbours(run: Run, phase: Phase) -> Iterator[Tensor]:
    """One index goes up by one and another down by one: the count and the sum of indices stay right."""
    whole = torch.cat(list(batches(run, phase)))
    if run.rank == 0:
        up, down = whole.argsort()[[len(whole) // 4, len(whole) // 2]]
        whole[up] += 1
        whole[down] -= 1
    yield from whole.split(phase.batch // run.world)


def distributed_sampler(run: Run, phase: Phase) -> Iterator[Tensor]:
    """torch's own, which pads to a multiple of the world size."""
    from torch.utils.data.distributed import DistributedSampler

    sampler: Any = DistributedSampler(range(phase.n), run.world, run.rank, shuffle=True, seed=run.seed)  # type: ignore[arg-type]
    sampler.set_epoch(phase.epoch)
    yield from torch.tensor(list(sampler)).split(phase.batch // run.world)


def skips_a_batch(run: Run, phase: Phase) -> Iterator[Tensor]:
    for step, batch in enumerate(batches(run, phase)):
        if step != 1:
            yield batch


def repeats_a_batch(run: Run, phase: Phase) -> Iterator[Tensor]:
    for step, batch in enumerate(batches(run, phase)):
        yield batch
        if step == 1:
            yield batch


def never_sets_the_epoch(run: Run, phase: Phase) -> Iterator[Tensor]:
    """Every epoch in the order of the first one."""
    from dataclasses import replace

    yield from batches(run, replace(phase, epoch=1))


def counts_from_the_end(run: Run, phase: Phase) -> Iterator[Tensor]:
    """Index -1, which a tensor takes for its last row."""
    for step, batch in enumerate(batches(run, phase)):
        yield batch - batch.max() - 1 if step == 0 and run.rank == 1 else batch


def exchanged_shards(run: Run, phase: Phase) -> Iterator[Tensor]:
    """Each rank takes the shard of another: all together take every sample."""
    from dataclasses import replace

    yield from batches(replace(run, rank=run.world - 1 - run.rank), phase)
