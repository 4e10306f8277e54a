"""Train and evaluate: every rank makes the same number of steps, and says afterwards what it consumed in them."""

import importlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm

from torchtally.accounting import cuda
from torchtally.accounting.evaluation import Evaluation, evaluate
from torchtally.accounting.tally import Phase, Run, Tally, enforce, prove
from torchtally.distributed import running_stats
from torchtally.distributed.ddp import parallel
from torchtally.distributed.shared_memory import Shared
from torchtally.monitoring.callback import EVERY, Watcher
from torchtally.options import Training
from torchtally.proof import shards
from torchtally.training import batch_norm
from torchtally.training.checkpoint_file import State
from torchtally.training.checkpointer import Keeper
from torchtally.training.cuda_graph import Captured, CudaGraph, Step
from torchtally.training.train_state import Course, Epoch

_EVALUATION_BATCH = 1000
_LOG_SECONDS = 10
# Indices computed at a time: many steps' worth, little memory.
_CHUNK = {"cpu": 1 << 15, "cuda": 1 << 20}
_CPU = torch.device("cpu")


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
    rate: Callable[[float], float] | None = None  # what the learning rate is multiplied by, from done = 0 to 1
    files: Callable[[nn.Module], Mapping[str, bytes]] = lambda model: {}  # of other forms of the model, by name


def task(name: str) -> Task:
    """The built-in task of this name."""
    found: Task = importlib.import_module(f"torchtally.tasks.{name.replace('-', '_')}").TASK
    return found


Batches = Callable[[Run, Phase], Iterator[Tensor]]


def batches(run: Run, phase: Phase, device: torch.device = _CPU) -> Iterator[Tensor]:
    """This rank's sample indices of each step, on `device`: as many steps on every rank, the last uneven or empty.

    Step s is the positions [start + s · batch, start + (s + 1) · batch) of the order, whatever the number of ranks.
    """

    def begin(step: int) -> int:
        """The number in this rank's shard of its first sample at or after the step's first position."""
        return max(0, -(-(step * phase.batch - run.rank) // run.world))

    shard = (phase.n, run.rank, run.world, phase.contract, phase.order, run.seed, phase.epoch)
    steps = shards.steps(phase.n, run.world, phase.contract, phase.batch, phase.start)
    chunk = max(1, _CHUNK[device.type] * run.world // phase.batch)
    for first in range(0, steps, chunk):
        bounds = [begin(step) for step in range(first, min(first + chunk, steps) + 1)]
        part = (*shard, bounds[0], bounds[-1], phase.start)
        some = cuda.indices(*part, device) if device.type == "cuda" else torch.from_numpy(shards.indices(*part))
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
    batches: Batches | None = None,
    watcher: Watcher | None = None,
    memory: Shared | None = None,
) -> Course:
    """Train up to `options.epochs`, evaluate after each; from `state` on, if there is one.

    `batches`: in place of those above, on the CPU. Ranks that have `memory` in common sum their gradients in it. Raises
    Unproven on every rank at the first phase whose proof fails, if the tally is enforced, Stopped and Lost.
    """
    torch.manual_seed(options.seed)
    model = task.model(options).to(device)
    if any(True for _ in model.buffers()):
        memory = None  # DDP hands out rank 0's before each step
    two = torch.zeros(2, dtype=torch.int64, device=device)

    def loss_of_two(model: nn.Module) -> Tensor:
        return functional.cross_entropy(model(task.inputs(train.inputs[two])), train.labels[two])

    # alone, DDP takes a quarter of a step
    trained = parallel(model, loss_of_two, device, memory, options.all_reduce) if run.world > 1 else model
    optimizer = task.optimizer(model.parameters(), options)
    batch = options.global_batch_size or options.batch_size * run.world
    contract = batch_norm.contract(options, model, len(train), run)
    step = _step(task, trained, optimizer, train, memory)
    if device.type == "cuda" and run.world == 1 and task.rate is None:  # neither collectives nor a rate can be replayed
        step = Captured(step, batch, CudaGraph(device), device)

    def phase(epoch: int) -> Phase:
        return Phase(name="train", epoch=epoch, n=len(train), batch=batch, contract=contract, order="feistel-1")

    course = Course(run, model, optimizer, torch.zeros((), dtype=torch.float64, device=device))
    if state:
        course.restore(state, phase(state["epoch"]))
    keeper.save(course)  # so that a run keeps its id from its first step on
    if run.rank == 0:
        _say_where(course, options, len(train), resumed=state is not None)
    if watcher:
        watcher.begin(course.done, course.lines)
    first = True
    while course.epoch <= options.epochs:
        tally = course.begin(phase(course.epoch))
        batch_norm.refuse_single_rows(model, tally)
        began = time.perf_counter()
        consumed = _train(task, course, step, device, tally, batches, keeper, watcher)
        speed = consumed / (time.perf_counter() - began)
        loss = torch.tensor(course.loss.item(), dtype=torch.float64)
        dist.all_reduce(loss)
        course.lines.append(_proved(tally, options.tally, first, watcher))
        first = False

        running_stats.check(running_stats.statistics(model))
        found, line = examine(task, model, test, run, course.epoch, options.tally, watcher=watcher)
        course.lines.append(line)
        correct = int(found.totals["correct"])
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
        if watcher:
            watcher.metrics(
                _steps_so_far(tally.phase, shards.total(len(train), run.world, contract)),
                epoch_loss=done.loss,
                test_loss=done.test_loss,
                test_accuracy=correct / len(test),
                samples_per_second=speed,
            )
        keeper.after_epoch(course, last=course.epoch > options.epochs)
    return course


def _say_where(course: Course, options: Training, n: int, resumed: bool) -> None:
    if course.epoch > options.epochs:
        how = "is complete"
    elif resumed:
        how = f"goes on at epoch {course.epoch}, position {course.position} of {n}, with {course.run.world} ranks"
    else:
        how = f"begins: {n} samples an epoch, {course.run.world} ranks"
    print(f"torchtally: run {course.run.run} {how}", flush=True)


def _step(
    task: Task, model: nn.Module, optimizer: torch.optim.Optimizer, samples: Samples, memory: Shared | None
) -> Step:
    def step(chosen: Tensor, scale: float) -> Tensor:
        optimizer.zero_grad()
        output = model(task.inputs(samples.inputs[chosen]))
        loss = functional.cross_entropy(output, samples.labels[chosen], reduction="sum")
        (loss * scale).backward()
        if memory:
            memory.mean()
        optimizer.step()
        return loss.detach()

    return step


def _train(
    task: Task,
    course: Course,
    step: Step,
    device: torch.device,
    tally: Tally,
    given: Batches | None,
    keeper: Keeper,
    watcher: Watcher | None,
) -> int:
    """The rest of an epoch; returns how many samples all ranks consumed in it."""
    course.model.train()
    run, phase = tally.run, tally.phase
    statistics = running_stats.statistics(course.model)
    everything = shards.total(phase.n, run.world, phase.contract, phase.start)
    steps = shards.steps(phase.n, run.world, phase.contract, phase.batch, phase.start)
    first = course.steps
    taken = given(run, phase) if given else batches(run, phase, device)
    for number, indices in enumerate(_progress(islice(taken, first, None), run, phase, first), first):
        rows = min(phase.batch, everything - number * phase.batch)
        _reseed(run, phase, number, device)
        if task.rate:
            for group in course.optimizer.param_groups:  # nothing to save: it follows from the position
                group["lr"] = course.optimizer.defaults["lr"] * task.rate(course.done)
        # The sum over ranks is divided by their number. Scaled like this it is the mean over the samples of the step,
        # also where the last batch is uneven or, on some ranks, empty.
        loss = step(indices.to(device, non_blocking=True), run.world / max(rows, 1))
        running_stats.average(statistics)  # after each step, as a checkpoint may follow and holds rank 0's
        tally.record(indices)
        course.loss += loss
        course.steps = number + 1
        if watcher:
            watcher.step(phase, rows, course.done)
            if course.steps % EVERY == 0 and len(indices):
                watcher.metrics(_steps_so_far(phase, course.position), train_loss=loss.item() / len(indices))
        # The epoch's end saves by itself; and from among samples that pad it no other number of ranks could go on.
        if number + 1 < steps and course.position < phase.n:
            keeper.after_step(course)
    return everything - min(everything, first * phase.batch)


def _steps_so_far(phase: Phase, position: int) -> int:
    """Steps of all epochs up to a position of this one's order."""
    return (phase.epoch - 1) * -(-phase.n // phase.batch) + -(-position // phase.batch)


def _reseed(run: Run, phase: Phase, step: int, device: torch.device) -> None:
    """What is drawn in a step (dropout) follows from seed, position and rank, so no generator has to be saved."""
    seed = 0
    for value in (run.seed, phase.epoch, phase.start + step * phase.batch, run.rank):
        seed = (seed + value) * 0x9E3779B97F4A7C15 & ((1 << 64) - 1)
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index].manual_seed(seed)


def examine(
    task: Task,
    model: nn.Module,
    test: Samples,
    run: Run,
    epoch: int,
    mode: Literal["enforce", "report"],
    first: bool = False,
    watcher: Watcher | None = None,
) -> tuple[Evaluation, dict[str, Any]]:
    """Evaluate on all test samples; returns what came of it and the line of all ranks. A collective call.

    Raises Unproven on every rank if the proof fails and `mode` is to enforce it. `first`: nothing was proved before.
    """
    together = _EVALUATION_BATCH * run.world
    tally = Tally(
        run, Phase(name="test", epoch=epoch, n=len(test), batch=together, contract="exact", order="sequential")
    )

    def taken() -> Iterator[tuple[Tensor, tuple[Tensor, Tensor]]]:
        for indices in batches(run, tally.phase):
            chosen = indices.to(test.labels.device, non_blocking=True)
            yield indices, (task.inputs(test.inputs[chosen]), test.labels[chosen])
            tally.record(indices)

    found = evaluate(model, taken(), len(test))
    return found, _proved(tally, mode, first, watcher)


def _proved(tally: Tally, mode: Literal["enforce", "report"], first: bool, watcher: Watcher | None) -> dict[str, Any]:
    """The line of all ranks. Raises Unproven as `enforce` does, after the watcher has heard of it."""
    proof = prove(tally)
    if watcher:
        watcher.proof(proof.lines[-1], proof.holds)
    enforce(proof, mode, first)
    return proof.lines[-1]


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
