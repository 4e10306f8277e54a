"""Train and evaluate: every rank makes the same number of steps, and says afterwards what it consumed in them."""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from torchtally import shards
from torchtally.errors import Refused
from torchtally.evaluate import Evaluation, evaluate
from torchtally.options import Training
from torchtally.shards import Contract
from torchtally.tally import Phase, Proof, Run, Tally, enforce, prove

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


@dataclass(frozen=True)
class Epoch:
    """What came of one epoch, over all ranks."""

    epoch: int
    loss: float  # mean over the training samples
    test_loss: float  # mean over the test samples
    correct: int  # of the test samples
    tested: int
    samples_per_second: float  # in training


@dataclass(frozen=True)
class Fitted:
    """A trained model without DDP around it, the proof of every phase, and the course of the training."""

    model: nn.Module
    proofs: list[Proof]
    epochs: list[Epoch]


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
    batches: Batches = batches,
) -> Fitted:
    """Train for `options.epochs`, evaluate after each.

    Raises Unproven on every rank at the first phase whose proof fails, if the tally is enforced.
    """
    torch.manual_seed(options.seed)
    model = task.model(options).to(device)
    parallel = DistributedDataParallel(
        model, device_ids=[device] if device.type == "cuda" else None, gradient_as_bucket_view=True, static_graph=True
    )
    optimizer = torch.optim.SGD(parallel.parameters(), lr=options.lr, fused=True)
    batch = options.global_batch_size or options.batch_size * run.world
    contract = _contract(options, model, len(train), batch, run)
    fitted = Fitted(model, [], [])
    for epoch in range(1, options.epochs + 1):
        phase = Phase(name="train", epoch=epoch, n=len(train), batch=batch, contract=contract, order="feistel-1")
        tally = Tally(run, phase)
        began = time.perf_counter()
        loss = _train(task, options, parallel, optimizer, train, tally, batches)
        seconds = time.perf_counter() - began
        fitted.proofs.append(proof := prove(tally))
        enforce(proof, options.tally, first=epoch == 1)
        speed = proof.lines[-1]["consumed"] / seconds

        together = _EVALUATION_BATCH * run.world
        phase = Phase(name="test", epoch=epoch, n=len(test), batch=together, contract="exact", order="sequential")
        tally = Tally(run, phase)
        found = _evaluate(task, model, test, tally)
        correct = int(found.totals["correct"])
        fitted.proofs.append(proof := prove(tally))
        enforce(proof, options.tally, first=False)
        fitted.epochs.append(Epoch(epoch, loss, found.mean("loss"), correct, len(test), speed))
        if run.rank == 0:
            print(
                f"epoch {epoch}/{options.epochs}: loss {loss:.4f}, test accuracy {correct / len(test):.2%} "
                f"({correct} of {len(test)}), {speed:,.0f} samples/s",
                flush=True,
            )
    return fitted


def _contract(options: Training, model: nn.Module, n: int, batch: int, run: Run) -> Contract:
    """The contract of the training. Raises Refused for a model with BatchNorm and a step that leaves a rank one row."""
    if not any(isinstance(module, _BatchNorm) for module in model.modules()):
        return options.contract or "exact"
    contract = options.contract or "drop_last"
    if options.contract is None and run.rank == 0:
        print(
            "torchtally: the model has BatchNorm, which cannot take a batch of one row, so the contract is drop_last: "
            f"{n - shards.total(n, run.world, contract)} of {n} samples are left out of each epoch",
            flush=True,
        )
    everything = shards.total(n, run.world, contract)
    last = everything - (shards.steps(n, run.world, contract, batch) - 1) * batch
    if min(last, batch) // run.world < 2:
        raise Refused(
            f"the last of an epoch's steps has {last} samples for {run.world} ranks, and BatchNorm needs 2 on each: "
            f"--batch-size {batch // run.world} (--global-batch-size {batch}) must be such that {everything} samples "
            "leave more"
        )
    return contract


def _train(
    task: Task,
    options: Training,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    samples: Samples,
    tally: Tally,
    batches: Batches,
) -> float:
    """One epoch; returns the mean loss over all samples of all ranks."""
    model.train()
    run, phase, device = tally.run, tally.phase, samples.labels.device
    everything = shards.total(phase.n, run.world, phase.contract)
    total_loss = torch.zeros((), dtype=torch.float64, device=device)
    for step, indices in enumerate(_progress(batches(run, phase), run, phase)):
        rows = min(phase.batch, everything - step * phase.batch)
        chosen = indices.to(device, non_blocking=True)
        output = model(task.inputs(samples.inputs[chosen]))
        loss = functional.cross_entropy(output, samples.labels[chosen], reduction="sum")
        # DDP takes the mean over ranks. Scaled like this it is the mean over the samples of the step, also where the
        # last batch is uneven or, on some ranks, empty.
        (loss * (run.world / max(rows, 1))).backward()
        optimizer.step()
        optimizer.zero_grad()
        tally.record(indices)
        total_loss += loss.detach()
    total_loss = total_loss.cpu()
    dist.all_reduce(total_loss)
    return total_loss.item() / everything


def _evaluate(task: Task, model: nn.Module, samples: Samples, tally: Tally) -> Evaluation:
    def taken() -> Iterator[tuple[Tensor, tuple[Tensor, Tensor]]]:
        for indices in batches(tally.run, tally.phase):
            chosen = indices.to(samples.labels.device, non_blocking=True)
            yield indices, (task.inputs(samples.inputs[chosen]), samples.labels[chosen])
            tally.record(indices)

    return evaluate(model, taken(), len(samples))


def _progress(indices: Iterator[Tensor], run: Run, phase: Phase) -> Iterator[Tensor]:
    """Show rank 0's progress: a bar on a terminal, a line now and then in a log."""
    if run.rank != 0:
        yield from indices
        return
    steps = shards.steps(phase.n, run.world, phase.contract, phase.batch)
    title = f"{phase.name} epoch {phase.epoch}/{run.plan[phase.name]}"
    if sys.stderr.isatty():
        yield from tqdm(indices, title, total=steps, unit="step", leave=False)
        return
    due = time.monotonic() + _LOG_SECONDS
    for step, batch in enumerate(indices):
        yield batch
        if time.monotonic() > due:
            print(f"{title}: step {step + 1} of {steps}", flush=True)
            due += _LOG_SECONDS
