"""Train and evaluate: every rank makes the same number of steps, and the epoch's proof follows."""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm

from torchtally import events, standard_output
from torchtally.accounting.evaluation import Evaluation, evaluate
from torchtally.accounting.ledger.epoch_in_progress import EpochInProgress
from torchtally.accounting.ledger.tally import Phase, Run, Tally
from torchtally.accounting.order.schedule import Schedule
from torchtally.accounting.proofs.proving import enforce, prove
from torchtally.accounting.reporting.meeting import Meeting
from torchtally.accounting.reporting.pace import Pace
from torchtally.accounting.reporting.step_time import StepTime
from torchtally.checkpoints.rounds import Rounds
from torchtally.distributed import ddp, running_stats
from torchtally.distributed.shared_memory import SharedGradients
from torchtally.log import log
from torchtally.monitoring.callback import LOSS_INTERVAL, Callback
from torchtally.options import Training
from torchtally.training import batch_norm
from torchtally.training.batches import Batches, batches
from torchtally.training.cuda_graph import Captured, CudaGraph, Step
from torchtally.training.task import Inputs, Samples, Task
from torchtally.training.train_state import Epoch, TrainState

if TYPE_CHECKING:
    from torchtally.monitoring.prometheus import Exporter

_EVALUATION_BATCH = 1000
_LOG_SECONDS = 10


@dataclass(frozen=True, kw_only=True)
class Loop:
    """The training loop of one rank."""

    task: Task
    options: Training
    train_state: TrainState  # its model is on `device`, as `train` and `test`
    train: Samples
    test: Samples
    device: torch.device
    checkpointer: Rounds
    callback: Callback | None = None
    pace: Pace | None = None  # on the first rank of a pod
    exporter: "Exporter | None" = None  # as well, if metrics are requested
    memory: SharedGradients | None = None  # in which the ranks of one pod sum their gradients
    batches: Batches | None = None  # of a test: the indices of each step, on the CPU

    def fit(self) -> None:
        """Train up to `options.epochs`, from a loaded state on if there is one; evaluate after each epoch.

        Raises Unproven on every rank at the first phase whose proof fails, if the tally is enforced; Stopped and Lost.
        """
        options, train_state = self.options, self.train_state
        run, model = train_state.run, train_state.model
        batch = options.global_batch_size or options.batch_size * run.world
        contract = batch_norm.contract(options, model, len(self.train), run)
        step = self._step(model, train_state.optimizer, batch)

        def phase(epoch: int) -> Phase:
            return Phase(
                name="train", epoch=epoch, n=len(self.train), batch=batch, contract=contract, order=self.train.order
            )

        if train_state.epoch <= options.epochs:
            train_state.begin(phase(train_state.epoch))
        self.checkpointer.save(wait=True)  # so that a run keeps its id from its first step on
        if run.rank == 0:
            self._say_where()
        if self.callback:
            so_far = _steps_so_far(phase(train_state.epoch), train_state.position)
            self.callback.begin(so_far, train_state.done)
        first, meeting = True, Meeting(run, StepTime(run.world))
        while train_state.epoch <= options.epochs:
            self._epoch(phase(train_state.epoch), step, meeting, first)
            first = False

    def _step(self, model: nn.Module, optimizer: torch.optim.Optimizer, batch: int) -> Step:
        """Return the training step, with the model wrapped for all ranks."""
        task, train, memory = self.task, self.train, self.memory
        statistics = running_stats.of(model)
        two = torch.zeros(2, dtype=torch.int64, device=self.device)

        def loss_of_two(model: nn.Module) -> Tensor:
            return functional.cross_entropy(model(task.inputs(train.inputs[two])), train.labels[two])

        together = model
        if self.train_state.run.world > 1:  # alone, DDP takes a quarter of a step
            together = ddp.wrap(model, loss_of_two, self.device, memory, self.options.all_reduce)

        def step(chosen: Tensor, scale: float) -> Tensor:
            optimizer.zero_grad()
            output = together(task.inputs(train.inputs[chosen]))
            labels = train.labels[chosen.to(self.device, non_blocking=True)]
            loss = functional.cross_entropy(output, labels, reduction="sum")
            (loss * scale).backward()
            # A checkpoint may follow, and holds rank 0's statistics.
            if memory:
                memory.average()
            else:
                running_stats.average(statistics)
            optimizer.step()
            return loss.detach()

        # A graph can replay neither collectives nor a changing rate.
        if self.device.type == "cuda" and self.train_state.run.world == 1 and task.rate is None:
            return Captured(step, batch, CudaGraph(self.device), self.device)
        return step

    def _epoch(self, phase: Phase, step: Step, meeting: Meeting, first: bool) -> None:
        """Train the rest of an epoch, prove it, evaluate, prove that, and save."""
        train_state, options = self.train_state, self.options
        run, model = train_state.run, train_state.model
        current = train_state.current or train_state.begin(phase)
        tally, before = current.tally, current.counted
        batch_norm.refuse_single_rows(model, tally)
        began = time.perf_counter()
        self._train(step, current, meeting, report=first and run.rank == 0)
        loss = torch.tensor(train_state.loss.item(), dtype=torch.float64)  # which waits for the device
        speed = current.samples(before, current.total) / (time.perf_counter() - began)
        dist.all_reduce(loss)
        train_state.close(_proved(tally, options.tally, first, self.callback))

        running_stats.check(running_stats.of(model))
        testing = train_state.begin(of_test(phase.epoch, len(self.test), run)).tally
        found, line = examine(self.task, model, self.test, testing, options.tally, callback=self.callback)
        train_state.close(line)
        total, correct = phase.shard(run).total, int(found.totals["correct"])
        done = Epoch(phase.epoch, loss.item() / total, found.mean("loss"), correct, len(self.test), speed)
        train_state.epochs.append(done)
        if run.rank == 0:
            done.tell(options.epochs, run.source)
        if self.callback:
            self.callback.metrics(
                _steps_so_far(tally.phase, total),
                epoch_loss=done.loss,
                test_loss=done.test_loss,
                test_accuracy=done.test_accuracy,
                samples_per_second=speed,
            )
        if train_state.epoch <= options.epochs:
            self.checkpointer.heed_signals()  # which saves if it stops
        self.checkpointer.save(wait=False)

    def _train(self, step: Step, current: EpochInProgress, meeting: Meeting, report: bool) -> None:
        """Make the rest of an epoch's steps, and `report` the first."""
        train_state = self.train_state
        train_state.model.train()
        run, phase = current.tally.run, current.tally.phase
        pace, steps = self.pace, meeting.steps
        steps.begin()
        if pace:
            pace.begin(phase.name, current.samples(0, current.counted), train_state.done)
        if self.exporter:
            self.exporter.begin(current, steps)
        # What makes rows on the CPU looks at the indices there, and would wait for the device for others.
        where = self.device if isinstance(self.train.inputs, Tensor) else torch.device("cpu")
        assert isinstance(current.schedule, Schedule)
        taken = current.schedule.tensors(where)
        if self.batches:
            taken = islice(self.batches(run, phase), current.counted, None)
        if not isinstance(self.train.inputs, Tensor):
            taken = _begun(taken, self.train.inputs, partial(_seed, run, phase), current.counted)
        for indices in _progress(steps.fetched(taken), current):
            rows = current.take(indices)
            _reseed(run, phase, current.counted, self.device)
            if self.task.rate:
                for group in train_state.optimizer.param_groups:  # nothing to save: it follows from the position
                    group["lr"] = train_state.optimizer.defaults["lr"] * self.task.rate(train_state.done)
            # DDP divides the sum over ranks by their number. Scaled like this it is the mean over the samples of the
            # step, also where the last batch is uneven or, on some ranks, empty.
            loss = step(indices.to(where, non_blocking=True), run.world / max(rows, 1))
            current.commit()
            train_state.loss += loss
            steps.stepped()
            if meeting.due:
                meeting.hold()
            if report:
                report = False
                loss.item()  # which waits for the device
                events.emit(events.Step(epoch=phase.epoch), run.source)
            if pace and pace.due:
                pace.report(
                    current, train_state.done, loss.item() / len(indices) if len(indices) else None, steps.total
                )
            if self.callback:
                self.callback.step(phase.epoch, rows, train_state.done)
                if current.counted % LOSS_INTERVAL == 0 and len(indices):
                    so_far = _steps_so_far(phase, train_state.position)
                    self.callback.metrics(so_far, train_loss=loss.item() / len(indices))
            # The end of the epoch saves; and from among samples that pad it no other number of ranks could go on.
            if current.counted < current.total and train_state.position < phase.n:
                self.checkpointer.after_commit()
                self.checkpointer.before_batch()
            steps.begin()

    def _say_where(self) -> None:
        train_state, n = self.train_state, len(self.train)
        run = train_state.run
        if train_state.epoch > self.options.epochs:
            how = "is complete"
        elif train_state.progress.loaded:
            how = (
                f"resumes at epoch {train_state.epoch}, position {train_state.position} of {n}, with {run.world} ranks"
            )
        else:
            how = f"begins: {n} samples an epoch, {run.world} ranks"
        log.info(f"run {run.run} {how}")
        self.checkpointer.tell_resumed()
        if not train_state.progress.loaded:
            events.emit(events.Begun(task=run.task, world=run.world), run.source)


def build(task: Task, options: Training, device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return the model at its first weights, the same on every rank, and its optimizer."""
    torch.manual_seed(options.seed)
    model = task.model(options).to(device)
    return model, task.optimizer(model.parameters(), options)


def _steps_so_far(phase: Phase, position: int) -> int:
    """Steps of all epochs up to a position of this one's order."""
    return (phase.epoch - 1) * -(-phase.n // phase.batch) + -(-position // phase.batch)


def _reseed(run: Run, phase: Phase, step: int, device: torch.device) -> None:
    """Seed the random numbers of a step (dropout), so that no generator is saved."""
    seed = _seed(run, phase, step)
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index].manual_seed(seed)


def _seed(run: Run, phase: Phase, step: int) -> int:
    """The seed of a step, by the run's seed, position, and rank."""
    seed = 0
    for value in (run.seed, phase.epoch, phase.start + step * phase.batch, run.rank):
        seed = (seed + value) * 0x9E3779B97F4A7C15 & ((1 << 64) - 1)
    return seed


def of_test(epoch: int, n: int, run: Run) -> Phase:
    """An evaluation on n samples."""
    batch = _EVALUATION_BATCH * run.world
    return Phase(name="test", epoch=epoch, n=n, batch=batch, contract="exact", order="sequential")


def examine(
    task: Task,
    model: nn.Module,
    test: Samples,
    tally: Tally,
    mode: Literal["enforce", "report"],
    first: bool = False,
    callback: Callback | None = None,
) -> tuple[Evaluation, dict[str, Any]]:
    """Evaluate on all test samples; return the result and the line of all ranks. A collective call.

    Raises Unproven on every rank if the proof fails and `mode` is "enforce". `first`: the table needs its header.
    """

    def taken() -> Iterator[tuple[Tensor, tuple[Tensor, Tensor]]]:
        for indices in batches(tally.run, tally.phase):
            chosen = indices.to(test.labels.device, non_blocking=True)
            yield indices, (task.inputs(test.inputs[chosen]), test.labels[chosen])
            tally.record(indices)

    found = evaluate(model, taken(), len(test))
    return found, _proved(tally, mode, first, callback)


def _proved(tally: Tally, mode: Literal["enforce", "report"], first: bool, callback: Callback | None) -> dict[str, Any]:
    """Return the line of all ranks, after the callback has received it. Raises Unproven as `enforce` does."""
    proof = prove(tally)
    if callback:
        callback.proof(proof.lines[-1], proof.holds)
    enforce(proof, mode, first)
    return proof.lines[-1]


def _begun(indices: Iterator[Tensor], inputs: Inputs, seed: Callable[[int], int], step: int) -> Iterator[Tensor]:
    """Yield the indices of each step, from `step` on, once the rows of the two after it are begun."""
    ahead: deque[Tensor] = deque()
    for number, chosen in enumerate(indices, step):
        inputs.begin(chosen, seed(number) ^ 1)  # other random numbers than those of the step itself
        ahead.append(chosen)
        if len(ahead) > 2:
            yield ahead.popleft()
    yield from ahead


def _progress(indices: Iterator[Tensor], current: EpochInProgress) -> Iterator[Tensor]:
    """Show rank 0's progress: a bar on a terminal, a line now and then in a log."""
    if current.tally.run.rank != 0:
        yield from indices
        return
    if sys.stderr.isatty():
        yield from tqdm(indices, current.title, initial=current.counted, total=current.total, unit="step", leave=False)
        return
    due = time.monotonic() + _LOG_SECONDS
    for batch in indices:
        yield batch
        if time.monotonic() > due:
            standard_output.write(current.progress)
            due += _LOG_SECONDS
