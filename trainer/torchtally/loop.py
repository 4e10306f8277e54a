"""Train and evaluate: every rank makes the same number of steps, and says afterwards what it consumed in them."""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from torchtally import shards
from torchtally.checkpoint import State
from torchtally.course import Course, Epoch
from torchtally.errors import Refused
from torchtally.evaluate import Evaluation, evaluate
from torchtally.keeper import Keeper
from torchtally.options import Training
from torchtally.shards import Contract
from torchtally.tally import Phase, Run, Tally, emit, enforce, prove

_EVALUATION_BATCH = 1000
_LOG_SECONDS = 10
_CHUNK = 1 << 15  # indices computed at a time: many steps' worth, little memory


@dataclass(frozen=True)
class Samples:
    """Inputs and labels, indexed alike."""

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device) -> "Samples":
        return Samples(self.inputs.to(device), self.labels.to(device))


@dataclass(frozen=True, kw_only=True)
class Task:
    """A workload: a model, its data and how one becomes the other's input. It knows nothing of ranks."""

    load: Callable[[Path | None, Path], tuple[Samples, Samples]]
    fingerprint: str
    model: Callable[[Training], nn.Module]
    inputs: Callable[[Tensor], Tensor]
    optimizer: Callable[[Iterator[nn.Parameter], Training], torch.optim.Optimizer]


Batches = Callable[[Run, Phase], Iterator[Tensor]]


def batches(run: Run, phase: Phase) -> Iterator[Tensor]:
    """This rank's sample indices of each step: as many steps on every rank, the last one uneven or empty.

    Step s is the positions [start + s · batch, start + (s + 1) · batch) of the order, whatever the number of ranks.
    """

    def begin(step: int) -> int:
        """The number in this rank's shard of its first sample at or after the step's first position."""
        return max(0, -(-(step * phase.batch - run.rank) // run.world))

    steps = shards.steps(phase.n, run.world, phase.contract, phase.batch, phase.start)
    chunk = max(1, _CHUNK * run.world // phase.batch)
    for first in range(0, steps, chunk):
        bounds = [begin(step) for step in range(first, min(first + chunk, steps) + 1)]
        some = torch.from_numpy(
            shards.indices(
                phase.n,
                run.rank,
                run.world,
                phase.contract,
                phase.order,
                run.seed,
                phase.epoch,
                bounds[0],
                bounds[-1],
                phase.start,
            )
        )
        for low, high in pairwise(bounds):
            yield some[low - bounds[0] : high - bounds[0]]


def fit(
    task: Task,
    options: Training,
    run: Run,
    train: Samples,
    test: Samples,
    device: torch.device,
    keeper: Keeper,
    state: State | None = None,
    batches: Batches = batches,
) -> Course:
    """Train up to `options.epochs`, evaluate after each; from `state` on, if there is one.

    Raises Unproven on every rank at the first phase whose proof fails, if the tally is enforced, and Stopped.
    """
    torch.manual_seed(options.seed)
    model = task.model(options).to(device)
    parallel = DistributedDataParallel(
        model, device_ids=[device] if device.type == "cuda" else None, gradient_as_bucket_view=True, static_graph=True
    )
    optimizer = task.optimizer(model.parameters(), options)
    batch = options.global_batch_size or options.batch_size * run.world
    contract = _contract(options, model, len(train), batch, run)

    def phase(epoch: int) -> Phase:
        return Phase(name="train", epoch=epoch, n=len(train), batch=batch, contract=contract, order="feistel-1")

    _settle(task, parallel, train)
    course = Course(run, model, optimizer, torch.zeros((), dtype=torch.float64, device=device))
    if state:
        course.restore(state, phase(state["epoch"]))
        if run.rank == 0:
            for line in course.lines:  # the logs of earlier pods may be gone
                emit(line)
    keeper.save(course.state)  # so that a run keeps its id from its first step on
    first = True
    while course.epoch <= options.epochs:
        tally = course.begin(phase(course.epoch))
        began = time.perf_counter()
        consumed = _train(task, course, parallel, train, tally, batches, keeper)
        speed = consumed / (time.perf_counter() - began)
        loss = torch.tensor(course.loss.item(), dtype=torch.float64)
        dist.all_reduce(loss)
        course.proofs.append(proof := prove(tally))
        enforce(proof, options.tally, first)
        first = False

        together = _EVALUATION_BATCH * run.world
        testing = Phase(
            name="test", epoch=course.epoch, n=len(test), batch=together, contract="exact", order="sequential"
        )
        tally = Tally(run, testing)
        found = _evaluate(task, model, test, tally)
        correct = int(found.totals["correct"])
        course.proofs.append(proof := prove(tally))
        enforce(proof, options.tally, first)
        done = Epoch(
            course.epoch,
            loss.item() / shards.total(len(train), run.world, contract),
            found.mean("loss"),
            correct,
            len(test),
            speed,
        )
        course.end_epoch(done)
        if run.rank == 0:
            print(
                f"epoch {done.epoch}/{options.epochs}: loss {done.loss:.4f}, test accuracy {correct / len(test):.2%} "
                f"({correct} of {len(test)}), {speed:,.0f} samples/s",
                flush=True,
            )
        keeper.save(course.state)
    return course


def _settle(task: Task, model: DistributedDataParallel, samples: Samples) -> None:
    """Let DDP lay out its buckets for good, which a first step alone would do: gloo adds up in the order of the layout.

    After this a resumed training makes the same sums, bit for bit, as one that went on. Nothing else is changed.
    """
    buffers = [buffer.clone() for buffer in model.buffers()]
    model.train()
    for _ in range(2):  # a static graph is known after the first, and its buckets are rebuilt in the second
        rows = torch.zeros(2, dtype=torch.int64, device=samples.labels.device)
        functional.cross_entropy(model(task.inputs(samples.inputs[rows])), samples.labels[rows]).backward()
        model.zero_grad()
    with torch.no_grad():
        for buffer, before in zip(model.buffers(), buffers, strict=True):
            buffer.copy_(before)


def _contract(options: Training, model: nn.Module, n: int, batch: int, run: Run) -> Contract:
    """The contract of the training. Raises Refused where it leaves no sample, or BatchNorm with one row on a rank."""
    with_batch_norm = any(isinstance(module, _BatchNorm) for module in model.modules())
    contract = options.contract or ("drop_last" if with_batch_norm else "exact")
    everything = shards.total(n, run.world, contract)
    if not everything:
        raise Refused(f"--contract {contract} leaves none of {n} samples for {run.world} ranks")
    if not with_batch_norm:
        return contract
    if options.contract is None and run.rank == 0:
        print(
            "torchtally: the model has BatchNorm, which cannot take a batch of one row, so the contract is drop_last: "
            f"{n - everything} of {n} samples are left out of each epoch",
            flush=True,
        )
    last = everything - (shards.steps(n, run.world, contract, batch) - 1) * batch
    if last // run.world < 2:
        raise Refused(
            f"the last of an epoch's steps has {last} samples for {run.world} ranks, and BatchNorm needs 2 on each: "
            f"--batch-size {batch // run.world} (--global-batch-size {batch}) must be such that {everything} samples "
            "leave more"
        )
    return contract


def _train(
    task: Task,
    course: Course,
    model: nn.Module,
    samples: Samples,
    tally: Tally,
    batches: Batches,
    keeper: Keeper,
) -> int:
    """The rest of an epoch; returns how many samples all ranks consumed in it."""
    model.train()
    run, phase, device = tally.run, tally.phase, samples.labels.device
    everything = shards.total(phase.n, run.world, phase.contract, phase.start)
    steps = shards.steps(phase.n, run.world, phase.contract, phase.batch, phase.start)
    first = course.steps
    for step, indices in enumerate(_progress(islice(batches(run, phase), first, None), run, phase, first), first):
        rows = min(phase.batch, everything - step * phase.batch)
        chosen = indices.to(device, non_blocking=True)
        _reseed(run, phase, step, device)
        output = model(task.inputs(samples.inputs[chosen]))
        loss = functional.cross_entropy(output, samples.labels[chosen], reduction="sum")
        # DDP takes the mean over ranks. Scaled like this it is the mean over the samples of the step, also where the
        # last batch is uneven or, on some ranks, empty.
        (loss * (run.world / max(rows, 1))).backward()
        course.optimizer.step()
        course.optimizer.zero_grad()
        tally.record(indices)
        course.loss += loss.detach()
        course.steps = step + 1
        if step + 1 < steps:  # the epoch's end saves by itself
            keeper.after_step(course.state)
    return everything - min(everything, first * phase.batch)


def _reseed(run: Run, phase: Phase, step: int, device: torch.device) -> None:
    """What is drawn in a step (dropout) follows from seed, position and rank, so no generator has to be saved."""
    seed = 0
    for value in (run.seed, phase.epoch, phase.start + step * phase.batch, run.rank):
        seed = (seed + value) * 0x9E3779B97F4A7C15 & ((1 << 64) - 1)
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index].manual_seed(seed)


def _evaluate(task: Task, model: nn.Module, samples: Samples, tally: Tally) -> Evaluation:
    def taken() -> Iterator[tuple[Tensor, tuple[Tensor, Tensor]]]:
        for indices in batches(tally.run, tally.phase):
            chosen = indices.to(samples.labels.device, non_blocking=True)
            yield indices, (task.inputs(samples.inputs[chosen]), samples.labels[chosen])
            tally.record(indices)

    return evaluate(model, taken(), len(samples))


def _progress(indices: Iterator[Tensor], run: Run, phase: Phase, first: int) -> Iterator[Tensor]:
    """Show rank 0's progress: a bar on a terminal, a line now and then in a log."""
    if run.rank != 0:
        yield from indices
        return
    steps = shards.steps(phase.n, run.world, phase.contract, phase.batch, phase.start)
    title = f"{phase.name} epoch {phase.epoch}/{run.plan[phase.name]}"
    if sys.stderr.isatty():
        yield from tqdm(indices, title, initial=first, total=steps, unit="step", leave=False)
        return
    due = time.monotonic() + _LOG_SECONDS
    for step, batch in enumerate(indices, first):
        yield batch
        if time.monotonic() > due:
            print(f"{title}: step {step + 1} of {steps}", flush=True)
            due += _LOG_SECONDS
