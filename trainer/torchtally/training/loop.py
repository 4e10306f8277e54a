"""Trains and evaluates a built-in task: a loop over an account, as a user would write it."""

import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm

from torchtally.accounting.account import Account
from torchtally.accounting.batches.collate import Batch
from torchtally.accounting.evaluation import evaluate
from torchtally.checkpoints.coordination import Rounds
from torchtally.checkpoints.of_rank_0 import CheckpointsOfRank0
from torchtally.distributed import ddp, running_stats, waiting
from torchtally.distributed.shared_memory import SharedGradients
from torchtally.errors import Refused
from torchtally.log import log
from torchtally.options import Training
from torchtally.training import batch_norm
from torchtally.training.cuda_graph import Captured, CudaGraph, Step
from torchtally.training.results import Epoch, Results
from torchtally.training.steps import Steps
from torchtally.training.task import Samples, Task

EVALUATION_BATCH = 1000
FOLDER = "checkpoints"
_LOGGED = 100  # steps between two whose loss is logged


class Loop:
    """The training of one rank.

    Args:
        account: Counts the samples. Its plan has `options.epochs` of `train` and of `test`.
        task: The workload.
        options: Its options.
        train: The samples to train with, on the device.
        test: The samples to test with, on the device.
        facts: What identifies the training.
        memory: In which the ranks of one pod sum their gradients.

    Raises:
        Refused: The contract leaves no sample.
    """

    def __init__(
        self,
        account: Account,
        task: Task,
        options: Training,
        train: Samples,
        test: Samples,
        facts: Mapping[str, Any],
        memory: SharedGradients | None = None,
    ):
        self._account, self._task, self._options, self._memory = account, task, options, memory
        self._train, self._test, self._device = train, test, train.labels.device
        self.model, self.optimizer = build(task, options, self._device)
        self.results = Results(account, facts, "--checkpoints" if options.checkpoints else "--output", self._device)
        contract = batch_norm.contract(options, self.model, len(train), account)
        self._sampler = account.sampler(
            "train",
            len(train),
            batch_size=None if options.global_batch_size else options.batch_size,
            global_batch_size=options.global_batch_size,
            contract=contract,
            fingerprint=task.fingerprint,
        )
        self._test_sampler = account.sampler(
            "test", len(test), batch_size=EVALUATION_BATCH, shuffle=False, trains=False, fingerprint=task.fingerprint
        )

    def checkpoints(self, output: Path) -> Rounds:
        """Return the checkpoints of the training: in the folder that the options name, or in one of rank 0."""
        options = self._options
        objects = {"model": self.model, "optimizer": self.optimizer, "results": self.results}
        folder, of_rank_0 = options.checkpoints or output / FOLDER, not options.checkpoints
        return self._account.checkpoints(
            folder, objects, every=options.save_seconds, keep=options.keep, of_rank_0=of_rank_0
        )

    def fit(self, checkpoints: Rounds) -> None:
        """Train up to the end of the plan, from the newest checkpoint on if there is one; evaluate after each epoch.

        Raises Unproven on every rank at the first phase whose proof fails; Refused, Stopped, and Lost.
        """
        account, task = self._account, self._task
        resumed = checkpoints.resume()
        if (before := account.grown_from) and task.rate:
            raise Refused(
                f"--epochs {self._options.epochs} must be {before['train']}, as in the checkpoint: the learning rate "
                "of this task depends on it from the first step on"
            )
        step = self._step()
        self._save(checkpoints, wait=True)  # so that a run keeps its id from its first step on
        if account.rank == 0:
            self._say_where(resumed)
        for epoch in account.epochs():
            loss, speed = self._fit(epoch, step)
            self._examine(epoch, loss, speed)
            self._save(checkpoints, wait=False)

    def _save(self, checkpoints: Rounds, *, wait: bool) -> None:
        if isinstance(checkpoints, CheckpointsOfRank0) and (best := self.results.best):
            checkpoints.best = best.epoch + 1, 0
        checkpoints.save(wait)

    def _step(self) -> Step:
        """Return the training step, with the model wrapped for all ranks."""
        task, train, memory, optimizer = self._task, self._train, self._memory, self.optimizer
        device, world = self._device, self._account.world
        statistics = running_stats.of(self.model)
        two = torch.zeros(2, dtype=torch.int64, device=device)

        def loss_of_two(model: nn.Module) -> Tensor:
            return functional.cross_entropy(model(task.inputs(train.inputs[two])), train.labels[two])

        together = self.model
        if world > 1:  # alone, DDP takes a quarter of a step
            together = ddp.wrap(self.model, loss_of_two, device, memory, self._options.all_reduce)

        def step(chosen: Tensor, scale: float) -> Tensor:
            optimizer.zero_grad()
            output = together(task.inputs(train.inputs[chosen]))
            labels = train.labels[chosen.to(device, non_blocking=True)]
            loss = functional.cross_entropy(output, labels, reduction="sum")
            scaled = loss * scale
            (waiting.timed(scaled) if world > 1 else scaled).backward()
            # A checkpoint may follow, and holds rank 0's statistics.
            if memory:
                memory.average()
            else:
                running_stats.average(statistics)
            optimizer.step()
            return loss.detach()

        # A graph can replay neither collectives nor a changing rate.
        if device.type == "cuda" and world == 1 and task.rate is None:
            return Captured(step, self._sampler.batch, CudaGraph(device), device)
        return step

    def _fit(self, epoch: int, step: Step) -> tuple[float, float]:
        """Make the rest of an epoch's steps; returns its mean loss, and the samples of all ranks a second."""
        account, results = self._account, self.results
        self.model.train()
        began = ended = time.perf_counter()
        samples = 0
        for batch in self._progress(epoch, account.epoch("train", epoch, Steps(self._sampler, self._train))):
            if not samples:
                batch_norm.refuse_single_rows(self.model, self._sampler)
            if self._task.rate:
                for group in self.optimizer.param_groups:  # nothing to save: it follows from the position
                    group["lr"] = self.optimizer.defaults["lr"] * self._task.rate(self._done)
            # DDP divides the sum over ranks by their number. Scaled like this it is the mean over the samples of the
            # step, also where the last batch is uneven or, on some ranks, empty.
            loss = step(batch.data, account.world / max(batch.rows, 1))
            results.loss += loss
            samples += batch.rows
            if batch.step == batch.steps:
                results.loss.item()  # which waits for the device
                ended = time.perf_counter()
            account.commit()
            if batch.step % _LOGGED == 0 and len(batch.indices):
                account.log(loss=loss / len(batch.indices))
        total = torch.tensor(results.loss.item(), dtype=torch.float64)
        dist.all_reduce(total)
        results.loss.zero_()
        loss_of_all = total.item() / self._sampler.whole
        account.log(epoch_loss=loss_of_all)
        return loss_of_all, samples / (ended - began) if samples else 0.0

    def _examine(self, epoch: int, loss: float, speed: float) -> None:
        """Evaluate, and tell the results of the epoch."""
        account, task, test = self._account, self._task, self._test
        steps = Steps(self._test_sampler, test, lambda chosen: rows(task, test, chosen))
        found = evaluate(self.model, account.epoch("test", epoch, steps), len(test))
        done = Epoch(epoch, loss, found.mean("loss"), int(found.totals["correct"]), len(test), speed)
        self.results.epochs.append(done)
        account.log(loss=done.test_loss, accuracy=done.test_accuracy)
        if account.rank == 0:
            done.tell(self._options.epochs, account.source)

    @property
    def _done(self) -> float:
        """The completed share of the training, from 0 to 1."""
        (epoch, position, _), n = self._account.reached, len(self._train)
        return (epoch - 1 + min(position, n) / n) / self._options.epochs

    def _progress(self, epoch: int, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Show rank 0's progress as a bar on a terminal; the account reports it in a log."""
        if self._account.rank != 0 or not sys.stderr.isatty():
            return batches
        title, total = f"train epoch {epoch}/{self._options.epochs}", self._account.steps("train", epoch)
        return iter(tqdm(batches, title, initial=self._account.skipped("train"), total=total, unit="step", leave=False))

    def _say_where(self, resumed: bool) -> None:
        account, n = self._account, len(self._train)
        epoch, position, _ = account.reached
        ranks = f"{account.world} rank{'s' * (account.world > 1)}"
        if epoch > self._options.epochs:
            how = "is complete"
        elif resumed:
            how = f"resumes at epoch {epoch}, position {position} of {n}, with {ranks}"
        else:
            how = f"begins: {n} samples an epoch, {ranks}"
        log.info(f"run {account.source.run} {how}")


def build(task: Task, options: Training, device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return the model at its first weights, the same on every rank, and its optimizer."""
    torch.manual_seed(options.seed)
    model = task.model(options).to(device)
    return model, task.optimizer(model.parameters(), options)


def rows(task: Task, samples: Samples, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The model's inputs, and the labels, of these samples."""
    return task.inputs(samples.inputs[chosen]), samples.labels[chosen.to(samples.labels.device, non_blocking=True)]
