"""The training of the task parameter-server: a coordinator, a parameter server, and trainers in DDP.

Rank 0 coordinates: it receives each epoch's result and writes the model and the proof, and its success is the job's.
Rank 1 is the parameter server. All other ranks train: DDP sums their gradients of the linear layer, and their gradients
of the table go to the server. The trainers step together, so a step equals that of one process on the global batch.

The run's form is the access to the table: by RPC (remote_table.py), or by collective calls on a table that is sharded
over the server and the trainers (sharded_embedding.py). The training takes seconds and saves no checkpoints.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from torchtally import events, exchange
from torchtally.accounting.ledger.epoch_in_progress import EpochInProgress
from torchtally.accounting.ledger.state import PhaseState
from torchtally.accounting.ledger.tally import Phase, Run, Tally
from torchtally.accounting.order.schedule import Schedule
from torchtally.accounting.proofs import kept_lines
from torchtally.accounting.proofs.printing import emit
from torchtally.accounting.proofs.proving import Proof, enforce, prove
from torchtally.accounting.reporting.pace import Pace
from torchtally.accounting.run.progress import Progress
from torchtally.distributed import handshake, process_group
from torchtally.environment import Places, Process, pod_of, store_address, trusts_network
from torchtally.errors import Refused
from torchtally.log import log
from torchtally.pod import address, device, network_interface
from torchtally.proof.shards import Shard
from torchtally.tasks.parameter_server import remote_table
from torchtally.tasks.parameter_server.options import Options
from torchtally.tasks.parameter_server.remote_table import COORDINATOR, SERVER, RemoteTable
from torchtally.tasks.parameter_server.sharded_embedding import ShardedTable, unshard
from torchtally.tasks.parameter_server.task import TASK, Model, bags
from torchtally.training import artifacts
from torchtally.training.loop import EVALUATION_BATCH
from torchtally.training.results import Epoch
from torchtally.training.task import Samples

FIRST_TRAINER = SERVER + 1
_NO_INDICES = torch.empty(0, dtype=torch.int64)


class Table(Protocol):
    """The table on a rank that takes part in the steps."""

    def look_up(self, indices: Tensor, offsets: Tensor) -> Tensor: ...

    def step(self, loss: Callable[[], Tensor]) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class RoleContext:
    """The rank's place and its process groups after the handshake."""

    process: Process
    run: str  # the run's id
    began: int  # when rank 0 began this start: milliseconds since 1970
    device: torch.device
    pace: Pace | None  # on the first rank of a pod
    trainers: Any  # process group of the trainers
    shard_holders: Any  # process group of the server and the trainers


class Trainer:
    """The steps of a trainer."""

    def __init__(self, table: Table, linear: DistributedDataParallel, context: RoleContext) -> None:
        self._table, self._linear, self._device, self._group = table, linear, context.device, context.trainers
        self._pace = context.pace

    def train(self, samples: Samples, current: EpochInProgress) -> float:
        """Train for an epoch; returns the sum of the losses over the samples of all trainers."""
        run, phase, pace = current.tally.run, current.tally.phase, self._pace
        total = torch.zeros((), dtype=torch.float64)
        epochs = run.plan[phase.name]
        if pace:
            pace.begin(phase.name, 0, (phase.epoch - 1) / epochs)
        for indices in batches(run, phase):
            rows = current.take(indices)
            inputs, labels = samples.inputs[indices], samples.labels[indices].to(self._device)

            def loss(inputs: Tensor = inputs, labels: Tensor = labels, rows: int = rows) -> Tensor:
                # The trainers' gradients are summed, so the loss is divided by the samples of all trainers.
                return functional.cross_entropy(self._logits(inputs), labels, reduction="sum") / rows

            summed = self._table.step(loss).cpu() * rows
            total += summed
            current.commit()
            if pace and pace.due:
                done = (phase.epoch - 1 + current.samples(0, current.counted) / phase.n) / epochs
                pace.report(current, done, summed.item() / len(indices) if len(indices) else None)
            if current.counted == phase.epoch == 1 and run.rank == 0:
                events.emit(events.Step(epoch=1), run.source)
        dist.all_reduce(total, group=self._group)
        return total.item()

    def test(self, samples: Samples, tally: Tally) -> tuple[float, int]:
        """Evaluate; returns the sum of the losses and the number of correct predictions over all trainers' samples."""
        totals = torch.zeros(2, dtype=torch.float64)
        with torch.no_grad():
            for indices in batches(tally.run, tally.phase):
                logits, labels = self._logits(samples.inputs[indices]).cpu(), samples.labels[indices]
                totals[0] += functional.cross_entropy(logits, labels, reduction="sum")
                totals[1] += (logits.argmax(dim=1) == labels).sum()
                tally.record(indices)
        dist.all_reduce(totals, group=self._group)
        return totals[0].item(), int(totals[1])

    def epoch(
        self, run: Run, train: Samples, training: Phase, test: Samples, testing: Phase
    ) -> tuple[Epoch, list[Proof]]:
        """Train, evaluate, and prove both."""
        trained, tested = Tally(run, training), Tally(run, testing)
        began = time.perf_counter()
        loss = self.train(train, EpochInProgress(trained, Schedule(trained.shard, training.batch)))
        seconds = time.perf_counter() - began
        proofs = [prove(trained, self._group)]
        test_loss, correct = self.test(test, tested)
        proofs.append(prove(tested, self._group))
        epoch, speed = testing.epoch, len(train) / seconds
        return Epoch(epoch, loss / len(train), test_loss / len(test), correct, len(test), speed), proofs

    def _logits(self, samples: Tensor) -> Tensor:
        logits: Tensor = self._linear(self._table.look_up(*bags(samples)).to(self._device))
        return logits


@dataclass
class Trained:
    """What came of a training. On rank 0, the model is the trained one."""

    run: Run
    model: Model
    progress: Progress
    epochs: list[Epoch] = field(default_factory=list)
    lines: list[dict[str, Any]] = field(default_factory=list)  # of all trainers together

    def close(self, phase: Phase, proof: Proof) -> None:
        """Add a phase of an epoch. Raises Unproven on every rank if its proof does not hold."""
        known = PhaseState.beginning(n=phase.n, contract=phase.contract, order=phase.order, data=self.run.data)
        self.progress.declare(phase.name, known)
        known = self.progress.phases[phase.name]
        self.progress.phases[phase.name] = known.shared_out(phase.epoch, 0, self.run.world)
        self.lines.append(proof.lines[-1])
        self.progress.close(proof.lines[-1])
        enforce(proof, first=len(self.lines) == 1)

    def write(self, output: Path, facts: Mapping[str, Any]) -> None:
        """Write the model and its proof, and print the last line: rank 0 does."""
        source = self.run.source
        hashes = artifacts.write_model(self.model, TASK, output, source)
        model = artifacts.sha256_text(hashes[artifacts.MODEL])
        last = self.progress.last_line(replace(self.run, pod=self.lines[-1]["pod"]), (), 0, model)
        assert last
        artifacts.write_proof(output, hashes, last, facts, self.epochs, source)
        emit(last)
        events.emit(events.Complete(model=model, output=str(output)), source)


def fit(name: str, options: Options, output: Path) -> Trained:
    """Run this rank's role. Raises Unproven on every rank at the first phase whose proof fails; Refused, and Lost."""
    context = set_up(name, options, output)
    rank = context.process.rank
    run = Run(
        run=context.run,
        attempt=context.process.attempt,
        pod=context.process.pod,
        task=name,
        plan={"train": options.epochs, "test": options.epochs},
        rank=rank - FIRST_TRAINER,  # a proof covers the trainers
        world=context.process.world - FIRST_TRAINER,
        seed=options.seed,
        data=TASK.fingerprint,
        began=context.began,
    )
    model = TASK.model(options)  # equal on all ranks; each uses its part
    assert isinstance(model, Model)
    linear = _wrap(model.linear, context) if rank >= FIRST_TRAINER else None
    own = list(linear.parameters()) if linear else []
    table: Table | None = None
    remote: Any = None
    if options.form == "rpc":
        remote_table.join(rank, context.process.world)
        if rank == COORDINATOR:
            remote = remote_table.create(model.table.weight)
        elif linear:
            table = RemoteTable(own, options.lr, context.trainers)
    elif rank != COORDINATOR:
        table = ShardedTable(model.table.weight, own, options.lr, context.shard_holders)

    trainer = Trainer(table, linear, context) if table and linear else None
    progress = Progress(run.plan)
    progress.measure({})
    trained = Trained(run, model, progress)
    _train(trained, run, options, rank, table, trainer)
    _gather(model, remote, table, rank)
    if options.form == "rpc":
        remote_table.shut_down()
    return trained


def set_up(name: str, options: Options, output: Path) -> RoleContext:
    """Join the handshake and create the process groups. Raises Refused on every rank."""
    process, places = Process.from_env(os.environ), Places.from_env(os.environ)
    trains = process.rank >= FIRST_TRAINER
    problem, where, pace = None, torch.device("cpu"), None
    try:
        pace = Pace.of(process)
        if process.world <= FIRST_TRAINER:
            raise Refused(
                f"WORLD_SIZE={process.world} must be at least 3: one process coordinates, one is the parameter server, "
                "and others train; start more pods, or set PET_NPROC_PER_NODE=3"
            )
        if options.form == "rpc" and not address.is_loopback(store_address()[0]) and not trusts_network():
            raise Refused(
                "by RPC, whoever reaches a pod's ports can run code there: set TORCHTALLY_TRUSTED_NETWORK=true where "
                "only the job's pods do, as with the chart's networkPolicy, which sets it, or use --form collective"
            )
        if trains:
            where = device.choose(places.device, process.local_rank)
        if process.rank == COORDINATOR:
            artifacts.prepare(output)
    except Refused as refused:
        problem = str(refused)
    facts = {
        "data": TASK.fingerprint,
        "seed": options.seed,
        "options": {name: value for name, value in vars(options).items() if name not in ("data", "output", "seed")},
    }
    store, run, began = process_group.join(process, facts, problem)

    network_interface.choose(*store_address())
    timeout = handshake.COLLECTIVE_TIMEOUT
    dist.init_process_group("gloo", timeout=timeout, store=store, rank=process.rank, world_size=process.world)
    devices = exchange.all_gather(where.type)
    kinds = devices[FIRST_TRAINER:]
    if other := next((rank for rank, kind in enumerate(kinds, FIRST_TRAINER) if kind != kinds[0]), None):
        raise Refused(
            f"rank {other} ({pod_of(other)}) has device {devices[other]} and rank {FIRST_TRAINER} "
            f"({pod_of(FIRST_TRAINER)}) has {kinds[0]}: it must be the same on all trainers"
        )
    backend = "cpu:gloo,cuda:nccl" if kinds[0] == "cuda" else "gloo"
    ranks = range(process.world)
    return RoleContext(
        process=process,
        run=run,
        began=began,
        device=where,
        pace=pace,
        trainers=dist.new_group([*ranks[FIRST_TRAINER:]], timeout, backend),
        shard_holders=dist.new_group([*ranks[SERVER:]], timeout, "gloo"),
    )


def _wrap(linear: nn.Linear, context: RoleContext) -> DistributedDataParallel:
    """Wrap the layer in DDP, which sums the trainers' gradients as the server sums those of the table."""
    wrapped = DistributedDataParallel(
        linear.to(context.device),
        device_ids=[context.device] if context.device.type == "cuda" else None,
        process_group=context.trainers,
    )
    wrapped.register_comm_hook(context.trainers, _sum)
    return wrapped


def _sum(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
    """A communication hook that sums gradients; DDP's default is the mean."""
    work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    assert work
    return work.get_future().then(lambda reduced: reduced.value()[0])


def _train(
    trained: Trained, run: Run, options: Options, rank: int, table: Table | None, trainer: Trainer | None
) -> None:
    """Train and evaluate; all ranks receive the result of each epoch."""
    train, test = TASK.load(None, Path())
    if rank == COORDINATOR:
        ranks = f"{run.world} trainers, the table by {options.form}"
        log.info(f"run {run.run} begins: {len(train)} samples an epoch, {ranks}")
        events.emit(events.Begun(task=run.task, world=run.world), run.source)
    batch = options.batch_size * run.world
    for epoch in range(1, options.epochs + 1):
        training = Phase(name="train", epoch=epoch, n=len(train), batch=batch, contract="exact", order="feistel-1")
        of_test = EVALUATION_BATCH * run.world
        testing = Phase(name="test", epoch=epoch, n=len(test), batch=of_test, contract="exact", order="sequential")
        result: Any = None
        if trainer:
            own, proved = trainer.epoch(run, train, training, test, testing)
            result = [asdict(own), [proof.lines for proof in proved]]
        elif isinstance(table, ShardedTable):
            _serve(table, run, training, testing)
        values, lines = exchange.broadcast(result, FIRST_TRAINER)
        done = Epoch(**values)
        for phase, proof in zip((training, testing), map(Proof, lines), strict=True):
            if rank == COORDINATOR:
                kept_lines.add(proof.lines)
            trained.close(phase, proof)
        trained.epochs.append(done)
        if rank == COORDINATOR:
            done.tell(options.epochs, run.source)
    if rank == COORDINATOR:
        seconds = sum(len(train) / each.samples_per_second for each in trained.epochs)
        steps = options.epochs * Shard(n=len(train), rank=0, world=run.world).steps(batch)
        log.info(f"{steps} steps by {options.form} in {seconds:.2f} s: {steps / seconds:,.0f} a second")


def batches(run: Run, phase: Phase) -> Iterator[Tensor]:
    """Yield this rank's sample indices of each step of a phase."""
    return Schedule(phase.shard(run), phase.batch).tensors(torch.device("cpu"))


def _serve(table: ShardedTable, run: Run, training: Phase, testing: Phase) -> None:
    """Take part in an epoch's collective calls with this rank's shard of the table, without samples."""

    def rows() -> Tensor:
        return table.look_up(_NO_INDICES, _NO_INDICES).sum()

    for _ in range(training.shard(run).steps(training.batch)):
        table.step(rows)
    with torch.no_grad():
        for _ in range(testing.shard(run).steps(testing.batch)):
            rows()


def _gather(model: Model, remote: Any, table: Table | None, rank: int) -> None:
    """Gather the trained parts of the model in `model` on rank 0. A collective call."""
    rows = table.embedding.weight.detach() if isinstance(table, ShardedTable) else None
    layer = {name: value.cpu() for name, value in model.linear.state_dict().items()}
    if parts := exchange.gather([rows, layer], form=exchange.TENSORS):
        weight = remote_table.fetch(remote) if remote else unshard([rows for rows, _ in parts[SERVER:]])
        model.table.load_state_dict({"weight": weight})
        model.linear.load_state_dict(parts[FIRST_TRAINER][1])
