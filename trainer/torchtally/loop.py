"""Train and evaluate: every rank makes the same number of steps, and says afterwards what it consumed in them."""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from torchtally import shards
from torchtally.options import Training
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
    correct: int  # of the test samples
    tested: int
    samples_per_second: float  # in training


@dataclass(frozen=True)
class Fitted:
    """A trained model without DDP around it, the proof of every phase, and the course of the training."""

    model: nn.Module
    proofs: list[Proof]
    epochs: list[Epoch]


Batches = Callable[[Run, Phase, int], Iterator[Tensor]]


def batches(run: Run, phase: Phase, size: int) -> Iterator[Tensor]:
    """This rank's sample indices, `size` a step: as many steps on every rank, the last ones uneven or empty."""
    # Rank 0's shard is the longest; a rank whose own has ended makes its last step with nothing.
    longest = shards.size(phase.n, 0, run.world, phase.contract)
    chunk = max(1, _CHUNK // size) * size
    for start in range(0, longest, chunk):
        some = torch.from_numpy(
            shards.indices(
                phase.n, run.rank, run.world, phase.contract, phase.order, run.seed, phase.epoch, start, start + chunk
            )
        )
        for at in range(0, min(chunk, longest - start), size):
            yield some[at : at + size]


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
    fitted = Fitted(model, [], [])
    for epoch in range(1, options.epochs + 1):
        phase = Phase(name="train", epoch=epoch, n=len(train), contract=options.contract, order="feistel-1")
        tally = Tally(run, phase)
        began = time.perf_counter()
        loss = _train(task, options, parallel, optimizer, train, tally, batches)
        seconds = time.perf_counter() - began
        fitted.proofs.append(proof := prove(tally))
        enforce(proof, options.tally, first=epoch == 1)
        speed = proof.lines[-1]["consumed"] / seconds

        phase = Phase(name="test", epoch=epoch, n=len(test), contract="exact", order="sequential")
        tally = Tally(run, phase)
        correct = _evaluate(task, model, test, tally)
        fitted.proofs.append(proof := prove(tally))
        enforce(proof, options.tally, first=False)
        fitted.epochs.append(Epoch(epoch, loss, correct, len(test), speed))
        if run.rank == 0:
            print(
                f"epoch {epoch}/{options.epochs}: loss {loss:.4f}, test accuracy {correct / len(test):.2%} "
                f"({correct} of {len(test)}), {speed:,.0f} samples/s",
                flush=True,
            )
    return fitted


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
    world_batch = options.batch_size * run.world
    everything = shards.total(phase.n, run.world, phase.contract)
    total_loss = torch.zeros((), dtype=torch.float64, device=device)
    steps = -(-everything // world_batch)
    for step, indices in enumerate(_progress(batches(run, phase, options.batch_size), steps, run, phase)):
        rows = min(everything, (step + 1) * world_batch) - step * world_batch
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


@torch.inference_mode()
def _evaluate(task: Task, model: nn.Module, samples: Samples, tally: Tally) -> int:
    """Correct predictions of all ranks together: counts are added, never means, on the bare model without DDP."""
    model.eval()
    device = samples.labels.device
    correct = torch.zeros((), dtype=torch.int64, device=device)
    for indices in batches(tally.run, tally.phase, _EVALUATION_BATCH):
        chosen = indices.to(device, non_blocking=True)
        predictions = model(task.inputs(samples.inputs[chosen])).argmax(dim=1)
        correct += (predictions == samples.labels[chosen]).sum()
        tally.record(indices)
    correct = correct.cpu()
    dist.all_reduce(correct)
    return int(correct.item())


def _progress(indices: Iterator[Tensor], steps: int, run: Run, phase: Phase) -> Iterator[Tensor]:
    """Show rank 0's progress: a bar on a terminal, a line now and then in a log."""
    if run.rank != 0:
        yield from indices
        return
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
