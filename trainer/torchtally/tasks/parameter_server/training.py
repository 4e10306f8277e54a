"""The task parameter-server: a table on one rank, DDP on those that train, and a rank that coordinates.

Rank 0 coordinates, and its success is the job's: it hears of every epoch, and writes what came of all. Rank 1 is the
parameter server. All others train: DDP adds up what they learn of the linear layer, and what they learn of the table
goes to the server. They make each step together, so that it is the step of one process on the whole batch.

How a trainer reaches the table is the run's form: by RPC (remote_table.py), or without, by collectives over a table
whose rows are shared out over the server and the trainers (sharded_embedding.py). There are no checkpoints: it is a
matter of seconds.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from torchtally import events
from torchtally.accounting.tally import Phase, Proof, Run, Tally, enforce, prove
from torchtally.distributed import handshake
from torchtally.distributed.process_group import agree
from torchtally.environment import Places, Process, meeting_point, pod_of
from torchtally.errors import Refused
from torchtally.pod import device
from torchtally.proof.shards import Shard
from torchtally.tasks.parameter_server import Options, network_interface, remote_table
from torchtally.tasks.parameter_server.remote_table import COORDINATOR, SERVER, RemoteTable
from torchtally.tasks.parameter_server.sharded_embedding import ShardedTable, whole
from torchtally.tasks.parameter_server.task import TASK, Model, bags
from torchtally.training import artifacts
from torchtally.training.batches import batches
from torchtally.training.task import Samples
from torchtally.training.train_state import Epoch, TrainState

FIRST_TRAINER = SERVER + 1
_TEST_BATCH = 1000  # bags a trainer and step
_NOTHING = torch.empty(0, dtype=torch.int64)


class Table(Protocol):
    """What a rank that takes part in the steps does with the table."""

    def look_up(self, indices: Tensor, offsets: Tensor) -> Tensor: ...

    def step(self, loss: Callable[[], Tensor]) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """What a rank needs to begin."""

    process: Process
    run: str
    device: torch.device
    trainers: Any  # a process group, of which only members make use; and of those who hold
    holders: Any  # the table's rows in the form without RPC


class Trainer:
    """What a rank that trains does with its samples."""

    def __init__(self, table: Table, linear: DistributedDataParallel, met: Meeting) -> None:
        self._table, self._linear, self._device, self._group = table, linear, met.device, met.trainers

    def train(self, samples: Samples, tally: Tally) -> float:
        """Make an epoch's steps; returns the sum of the losses of all trainers' samples."""
        phase = tally.phase
        total = torch.zeros((), dtype=torch.float64)
        for step, indices in enumerate(batches(tally.run, phase)):
            rows = min(phase.batch, phase.n - step * phase.batch)
            inputs, labels = samples.inputs[indices], samples.labels[indices].to(self._device)

            def loss(inputs: Tensor = inputs, labels: Tensor = labels, rows: int = rows) -> Tensor:
                # Of all trainers' samples the mean: what each learns is added up.
                return functional.cross_entropy(self._logits(inputs), labels, reduction="sum") / rows

            total += self._table.step(loss).cpu() * rows
            tally.record(indices)
            if step == 0 and phase.epoch == 1 and tally.run.rank == 0:
                events.emit(events.Step(epoch=1), tally.run.source)
        dist.all_reduce(total, group=self._group)
        return total.item()

    def test(self, samples: Samples, tally: Tally) -> tuple[float, int]:
        """The sum of the losses, and how many are right, of all trainers' samples."""
        totals = torch.zeros(2, dtype=torch.float64)
        with torch.no_grad():
            for indices in batches(tally.run, tally.phase):
                logits, labels = self._logits(samples.inputs[indices]).cpu(), samples.labels[indices]
                totals[0] += functional.cross_entropy(logits, labels, reduction="sum")
                totals[1] += (logits.argmax(dim=1) == labels).sum()
                tally.record(indices)
        dist.all_reduce(totals, group=self._group)
        return totals[0].item(), int(totals[1])

    def epoch(self, train: Samples, training: Tally, test: Samples, testing: Tally) -> tuple[Epoch, list[Proof]]:
        """Train and test, and prove both."""
        began = time.perf_counter()
        loss = self.train(train, training)
        seconds = time.perf_counter() - began
        proofs = [prove(training, self._group)]
        test_loss, correct = self.test(test, testing)
        proofs.append(prove(testing, self._group))
        done = Epoch(
            training.phase.epoch, loss / len(train), test_loss / len(test), correct, len(test), len(train) / seconds
        )
        return done, proofs

    def _logits(self, samples: Tensor) -> Tensor:
        logits: Tensor = self._linear(self._table.look_up(*bags(samples)).to(self._device))
        return logits


def fit(name: str, chosen: Options, output: Path) -> TrainState:
    """Do this rank's part of the training; on rank 0 the result has the model.

    Raises Unproven on every rank at the first epoch whose proof fails, if the tally is enforced; Refused, and Lost.
    """
    met = meet(name, chosen, output)
    rank = met.process.rank
    run = Run(
        run=met.run,
        attempt=met.process.attempt,
        pod=met.process.pod,
        task=name,
        plan={"train": chosen.epochs, "test": chosen.epochs},
        rank=rank - FIRST_TRAINER,  # a proof is about those that train
        world=met.process.world - FIRST_TRAINER,
        seed=chosen.seed,
        data=TASK.fingerprint,
    )
    model = TASK.model(chosen)  # the same everywhere; each rank keeps its part
    assert isinstance(model, Model)
    linear = _parallel(model.linear, met) if rank >= FIRST_TRAINER else None
    own = list(linear.parameters()) if linear else []
    table: Table | None = None
    remote: Any = None
    if chosen.form == "rpc":
        remote_table.join(rank, met.process.world)
        if rank == COORDINATOR:
            remote = remote_table.make(model.table.weight)
        elif linear:
            table = RemoteTable(own, chosen.lr, met.trainers)
    elif rank != COORDINATOR:
        table = ShardedTable(model.table.weight, own, chosen.lr, met.holders)

    trainer = Trainer(table, linear, met) if table and linear else None
    train_state = TrainState(run, model, TASK.optimizer(model.parameters(), chosen), torch.zeros(()))
    _epochs(train_state, chosen, met, table, trainer)
    _assemble(model, remote, table, rank)
    if chosen.form == "rpc":
        remote_table.leave()
    return train_state


def meet(name: str, chosen: Options, output: Path) -> Meeting:
    """Find this rank's role, agree with all others, and make the process groups. Raises Refused on every rank."""
    process, places = Process.from_env(os.environ), Places.from_env(os.environ)
    trains = process.rank >= FIRST_TRAINER
    problem, where = None, torch.device("cpu")
    try:
        if process.world <= FIRST_TRAINER:
            raise Refused(
                f"{process.world} processes are too few: one coordinates, one is the parameter server, and at least "
                "one trains"
            )
        if trains:
            where = device.choose(places.device, process.local_rank)
        if process.rank == COORDINATOR:
            artifacts.prepare(output)
    except Refused as sentence:
        problem = str(sentence)
    facts = {
        "data": TASK.fingerprint,
        "seed": chosen.seed,
        "options": {name: value for name, value in vars(chosen).items() if name not in ("data", "output", "seed")},
    }
    store, run = agree(process, facts, problem)

    network_interface.choose(*meeting_point())
    patience = handshake.COLLECTIVE
    dist.init_process_group("gloo", timeout=patience, store=store, rank=process.rank, world_size=process.world)
    devices: list[Any] = [None] * process.world
    dist.all_gather_object(devices, where.type)
    kinds = devices[FIRST_TRAINER:]
    if other := next((rank for rank, kind in enumerate(kinds, FIRST_TRAINER) if kind != kinds[0]), None):
        raise Refused(
            f"rank {other} ({pod_of(other)}) has device {devices[other]} and rank {FIRST_TRAINER} "
            f"({pod_of(FIRST_TRAINER)}) has {kinds[0]}: it must be the same on all that train"
        )
    backend = "cpu:gloo,cuda:nccl" if kinds[0] == "cuda" else "gloo"
    everybody = range(process.world)
    return Meeting(
        process=process,
        run=run,
        device=where,
        trainers=dist.new_group([*everybody[FIRST_TRAINER:]], patience, backend),
        holders=dist.new_group([*everybody[SERVER:]], patience, "gloo"),
    )


def _parallel(linear: nn.Linear, met: Meeting) -> DistributedDataParallel:
    """The layer on this trainer's device; trainers' gradients are added up, as the server adds up the table's."""
    parallel = DistributedDataParallel(
        linear.to(met.device),
        device_ids=[met.device] if met.device.type == "cuda" else None,
        process_group=met.trainers,
    )
    parallel.register_comm_hook(met.trainers, _add_up)
    return parallel


def _add_up(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
    """For DDP, which takes the mean by itself."""
    work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    assert work
    return work.get_future().then(lambda reduced: reduced.value()[0])


def _epochs(
    train_state: TrainState, chosen: Options, met: Meeting, table: Table | None, trainer: Trainer | None
) -> None:
    """Train and test; after each epoch every rank hears what came of it."""
    run, rank = train_state.run, met.process.rank
    train, test = TASK.load(None, Path())
    if rank == COORDINATOR:
        how = f"{run.world} trainers, the table by {chosen.form}"
        print(f"torchtally: run {run.run} begins: {len(train)} samples an epoch, {how}", flush=True)
        events.emit(events.Begun(task=run.task, world=run.world), run.source)
    batch = chosen.batch_size * run.world
    for epoch in range(1, chosen.epochs + 1):
        training = Phase(name="train", epoch=epoch, n=len(train), batch=batch, contract="exact", order="feistel-1")
        together = _TEST_BATCH * run.world
        testing = Phase(name="test", epoch=epoch, n=len(test), batch=together, contract="exact", order="sequential")
        made: list[Any] = [None]
        if trainer:
            made = [trainer.epoch(train, Tally(run, training), test, Tally(run, testing))]
        elif isinstance(table, ShardedTable):
            _serve(table, run, training, testing)
        dist.broadcast_object_list(made, src=FIRST_TRAINER)
        done, proofs = made[0]
        for proof in proofs:
            train_state.lines.append(proof.lines[-1])
            enforce(proof, chosen.tally, first=len(train_state.lines) == 1)
        train_state.epochs.append(done)
        if rank == COORDINATOR:
            accuracy = f"{done.correct / done.tested:.2%} ({done.correct} of {done.tested})"
            speed = f"{done.samples_per_second:,.0f} samples/s"
            print(f"epoch {epoch}/{chosen.epochs}: loss {done.loss:.4f}, test accuracy {accuracy}, {speed}", flush=True)
            events.emit(done.event, run.source)
    if rank == COORDINATOR:
        seconds = sum(len(train) / each.samples_per_second for each in train_state.epochs)
        steps = chosen.epochs * Shard(n=len(train), rank=0, world=run.world).steps(batch)
        print(
            f"torchtally: {steps} steps by {chosen.form} in {seconds:.2f} s: {steps / seconds:,.0f} a second",
            flush=True,
        )


def _serve(table: ShardedTable, run: Run, training: Phase, testing: Phase) -> None:
    """Take part in an epoch's steps with the rows that this rank holds, and no sample."""

    def rows() -> Tensor:
        return table.look_up(_NOTHING, _NOTHING).sum()

    for _ in range(training.shard(run).steps(training.batch)):
        table.step(rows)
    with torch.no_grad():
        for _ in range(testing.shard(run).steps(testing.batch)):
            rows()


def _assemble(model: Model, remote: Any, table: Table | None, rank: int) -> None:
    """Bring what the ranks hold of the model together on rank 0. A collective call."""
    rows = table.embedding.weight.detach() if isinstance(table, ShardedTable) else None
    layer = {name: value.cpu() for name, value in model.linear.state_dict().items()}
    parts: list[Any] | None = [None] * dist.get_world_size() if rank == COORDINATOR else None
    dist.gather_object((rows, layer), parts)
    if parts:
        weight = remote_table.fetch(remote) if remote else whole([rows for rows, _ in parts[SERVER:]])
        model.table.load_state_dict({"weight": weight})
        model.linear.load_state_dict(parts[FIRST_TRAINER][1])
