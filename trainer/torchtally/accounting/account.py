"""Accounts for the samples of a user's own loop: docs/guides/own-loop.md shows how.

A sample counts when it is in the weights: `commit()` after `optimizer.step()` says so. Where a phase does not train, a
batch counts when the loop asks for the next one. What was handed out and does not count is lost.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
import torch.distributed.nn  # imported after a group it would keep the group, whose threads can abort Python at exit
from torch.utils import data

from torchtally import compat_accelerate, events
from torchtally.accounting import loader, randomness
from torchtally.accounting.attempt import Attempt
from torchtally.accounting.collate import Batch
from torchtally.accounting.epoch_in_progress import EpochInProgress
from torchtally.accounting.epochs import Epochs
from torchtally.accounting.locality import Locality
from torchtally.accounting.phases import Phases
from torchtally.accounting.plan import Planned
from torchtally.accounting.progress import Progress
from torchtally.accounting.reports import Reports, problem
from torchtally.accounting.sampler import Sampler
from torchtally.accounting.state import State
from torchtally.accounting.tally import emit, enforce, prove
from torchtally.checkpoints.checkpoints import Checkpoints
from torchtally.errors import Ending, Refused, Unproven
from torchtally.monitoring.requested import Requested
from torchtally.pod import failure
from torchtally.proof import line as tally_line
from torchtally.proof.contract import Contract

_KEY = "torchtally"  # of the state


class Account:
    """Records which samples the loops of one run consume, and proves them at the end of each epoch.

    Use it in a `with` statement, in a process group. All ranks must make the same calls in the same order, and complete
    the plan before the end of the `with`. There, an exception of torchtally becomes `SystemExit` with its exit code,
    after its message is printed.

    It is `Stateful`, as torch's checkpoints name it: `state_dict` is a position, and `load_state_dict` goes on there.

    Args:
        task: Name of the run in its logs and proofs.
        plan: Number of epochs of each phase, such as `{"train": 10, "test": 10}`. `Steps(100_000)` or
            `Tokens(10**9, each=1024)` in place of a number ends the last epoch where these are reached.
        seed: Seed of the order of samples, from 0.
        group: The ranks that share the samples (default: all). With tensor, pipeline or context parallelism, that is
            the data-parallel group: `mesh["dp"].get_group()`. Ranks outside it have groups of their own.
        anew: Whether a restart that loads no state begins anew. Otherwise it is refused, as its weights may not.
        order: Order of the phases that shuffle: a `Locality` for data in shard files (default: one over all samples).
    """

    def __init__(
        self,
        *,
        task: str,
        plan: Mapping[str, Planned],
        seed: int = 0,
        group: dist.ProcessGroup | None = None,
        anew: bool = False,
        order: Locality | None = None,
    ):
        self._task, self._plan, self._seed, self._group, self._anew = task, plan, seed, group, anew
        self._order = order
        self._proved = 0  # epochs of this attempt
        self._driven: list[Epochs] = []
        self._randomness = 0  # the seed of the last batch
        self.discarded = 0  # samples known to be lost with restarts: consumed after the checkpoint of each
        self._checkpoints: Checkpoints | None = None
        self._reports: Reports | None = None  # on the process that prints for all
        self._phase = next(iter(plan), "")  # of the last batch
        self._failure: Ending | None = None  # a loop that catches it must not go on

    @property
    def plan(self) -> dict[str, int]:
        """Number of epochs of each phase, of which the last can end before its order does."""
        self._phases.measure()
        return self._progress.epochs

    @property
    def rank(self) -> int:
        """This process's rank among those that share the samples, from 0."""
        return self._attempt.members.rank

    @property
    def world(self) -> int:
        """Number of ranks that share the samples."""
        return self._attempt.members.world

    @property
    def task(self) -> str:
        """Name of the run."""
        return self._task

    @property
    def source(self) -> events.Source:
        """This process, as its events name it."""
        return self._attempt.run.source

    @property
    def reached(self) -> tuple[int, int, int]:
        """Epoch in progress of the first phase that trains, position in its order, and its samples in the weights."""
        return self._phases.reached

    def __enter__(self) -> Self:
        try:
            self._progress = Progress(self._plan)
            requested, refused = None, None
            try:
                requested = Requested.of()
            except Refused as error:
                refused = str(error)  # of which all ranks learn
            self._attempt = Attempt(
                task=self._task,
                plan=self._progress.given,
                seed=self._seed,
                group=self._group,
                anew=self._anew,
                problem=refused,
            )
            self._phases = Phases(self._progress, self._attempt, self._order)
            if self._attempt.prints and requested:
                self._reports = Reports(requested, self._phases, {"seed": self._seed, "plan": self._progress.given})
        except Ending as ending:
            raise SystemExit(failure.end(ending)) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._finish()
        except Ending as sentence:
            error = sentence
        if self._checkpoints:
            self._checkpoints.close(wait=error is None)
        if self._reports:
            self._reports.end(error)
        if isinstance(error, Ending):
            raise SystemExit(failure.end(error)) from None
        if isinstance(error, Exception):
            failure.record(error)

    def sampler(
        self,
        phase: str,
        n: int,
        *,
        batch_size: int,
        shuffle: bool = True,
        contract: Contract = "exact",
        fingerprint: str | None = None,
        trains: bool = True,
        order: Locality | None = None,
    ) -> Sampler:
        """Return this rank's sampler of a phase, for a DataLoader of your own.

        Args:
            phase: A phase of the plan.
            n: Number of samples of the dataset.
            batch_size: Samples of this rank in a step.
            shuffle: Whether each epoch has a new order. Otherwise, the order is that of the dataset.
            contract: How the samples divide over the ranks: `exact`, `padded`, or `drop_last`.
            fingerprint: Text that identifies the data and must be the same on all ranks. Without it, only `n` is
                compared.
            trains: Whether the samples go into the weights, so that `commit` counts them. Otherwise, as in an
                evaluation, a batch counts when the loop asks for the next one.
            order: Order of a phase that shuffles (default: that of the account), with the sizes of the shard files.

        Raises:
            Refused: An argument is not valid.
        """
        return self._phases.declare(
            phase,
            n,
            batch_size=batch_size,
            shuffle=shuffle,
            contract=contract,
            fingerprint=fingerprint,
            trains=trains,
            order=order,
        )

    def loader(
        self,
        phase: str,
        dataset: Any,
        *,
        batch_size: int,
        shuffle: bool = True,
        contract: Contract = "exact",
        trains: bool = True,
        order: Locality | None = None,
        **options: Any,
    ) -> data.DataLoader[Any]:
        """Return a DataLoader of a phase, whose batches carry the indices of their samples.

        All ranks have the same number of batches, so the last batch of a rank can be empty.

        Args:
            phase: A phase of the plan.
            dataset: A map-style dataset, or an IterableDataset with `__len__` and `at_indices(indices)`. If it has an
                attribute `fingerprint`, a text, that must be the same on all ranks. Otherwise, only the lengths are
                compared.
            batch_size: Samples of this rank in a step.
            shuffle: Whether each epoch has a new order. Otherwise, the order is that of the dataset.
            contract: How the samples divide over the ranks: `exact`, `padded`, or `drop_last`.
            trains: Whether `commit` counts the samples. Otherwise, a batch counts when the loop asks for the next one.
            order: Order of a phase that shuffles (default: that of the account). The dataset's attribute `shard_sizes`
                has the sizes of its shard files, unless the order has them.
            options: Other arguments of the DataLoader, such as `num_workers` and `collate_fn`.

        Raises:
            Refused: An argument is not valid, or the dataset lacks a method.
        """
        return self._phases.load(
            phase,
            dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            contract=contract,
            trains=trains,
            order=order,
            **options,
        )

    def epochs(self) -> Iterator[int]:
        """Yield the epochs that are left: all of the plan's, or from the one in progress on if a state is loaded.

        A plan in steps or tokens needs the phase's loader or sampler before.
        """
        progress = self._progress
        with self._final():
            self._phases.measure()
        last = max(progress.epochs.values())
        longest = [phase for phase, planned in progress.epochs.items() if planned == last]  # others skip epochs
        done = min(progress.completed(phase) for phase in longest)
        # The state of another phase can be within the epoch that these have completed.
        begun = {done for phase in progress.phases.values() if phase.position and phase.position.epoch == done}
        for epoch in range(1, last + 1):
            left = epoch in begun or any(progress.completed(phase) < epoch for phase in longest)
            if progress.stopped is None and left:
                yield epoch

    def stop(self, reason: str) -> None:
        """End the run here, on purpose: call it on all ranks after the same commit. A collective call.

        What is committed is proved, and the last line states the reason. Epochs that do not train can still be made.

        Args:
            reason: Why the run ends before its plan, such as `patience`.
        """
        with self._final():
            wrong = tally_line.text_problem("reason", reason) or self._progress.unopened(self._phases.open)
            self._attempt.agree({"reason to stop": reason, "state": self.state_dict()[_KEY]}, wrong)
            self._progress.stopped = reason
            for current in list(self._phases.open.values()):
                current.stop()
                if current.trains and current.position.consumed:
                    self._close(current)
                else:
                    del self._phases.open[current.tally.phase.name]

    def epoch(self, phase: str, epoch: int, batches: Iterable[Any]) -> Iterator[Batch]:
        """Yield the batches of one epoch, which is proved once all of them count.

        After `load_state_dict`, an epoch in progress goes on at its position, and one that was complete has no batch.

        Args:
            phase: A phase with a loader or a sampler.
            epoch: Number of the epoch, from 1.
            batches: The phase's loader, or a DataLoader of your own with the phase's sampler.

        Raises:
            Unproven: Samples were lost or doubled. All ranks raise it. Or a batch has other samples than its step.
            Refused: The epoch is not the next one, the ranks contradict each other, or `batches` is not valid.
        """
        with self._final():
            if getattr(batches, "next_iter_state", None) is not None:  # as torchdata names it
                raise Refused(
                    f"the state of the {type(batches).__name__} was loaded, which would skip batches once more "
                    "than the account does: load the account's state alone"
                )
            yield from self._epoch(phase, epoch, batches)

    def commit(self, *batches: Batch) -> None:
        """Count the samples that are in the weights now: call it after each `optimizer.step()`.

        Without an argument, these are all batches that were handed out. A loop that fetches ahead passes the last batch
        (of each phase) whose gradients the step has used. Several batches a step, as in gradient accumulation, count
        together. The commit of an epoch's last batch proves the epoch, which is a collective call.

        Raises:
            Unproven: The epoch is complete, and samples were lost or doubled. All ranks raise it.
            Refused: No batch is left to count, or commits show that the loop fetches ahead.
        """
        with self._final():
            if compat_accelerate.leaves_steps_out():
                raise Refused(
                    "commit() was called while Accelerate accumulates gradients, so its optimizer has not stepped: "
                    "call it only if accelerator.sync_gradients"
                )
            for batch in batches:
                current = self._phases.open.get(batch.phase)
                if current is None or not current.trains:
                    raise Refused(f"commit() must receive a batch of an epoch in progress that trains, not {batch!r}")
                current.commit_upto(batch.step)
            if not batches:
                pending = [each for each in self._phases.open.values() if each.trains and each.handed > each.counted]
                if not pending:
                    raise Refused(
                        "commit() has no batch to count: none is handed out and not committed; a loop that fetches "
                        "ahead must pass the batch: commit(batch)"
                    )
                for current in pending:
                    current.commit()
            for current in [each for each in self._phases.open.values() if each.trains]:
                self._attempt.stepped(current.tally.phase.epoch)
                if self._reports:
                    self._reports.stepped(current)
                if current.complete:
                    self._close(current)
            if self._checkpoints:
                self._checkpoints.after_commit()

    def log(self, **numbers: float | torch.Tensor) -> None:
        """Report numbers of rank 0, such as `account.log(loss=loss)`: docs/guides/own-loop.md shows where they appear.

        The phase of the last batch is put in front of their names: `train_loss`. Tensors are read about once a second,
        so this does not wait for a GPU in each step.

        Args:
            numbers: Numbers, or tensors with one element, by name.

        Raises:
            Refused: A value is not one number, or a name has other characters than letters, digits, and `_`.
        """
        if wrong := problem(numbers):
            with self._final():
                raise Refused(wrong)
        if self._reports:
            self._reports.log(self._phase, numbers)

    def checkpoints(
        self, folder: str | os.PathLike[str], objects: Mapping[str, Any], *, every: str | float = "5m", keep: int = 2
    ) -> Checkpoints:
        """Return checkpoints of the loop's objects, which `commit` saves: docs/guides/checkpoints.md shows how.

        A collective call. Call `resume()` on the result before the first epoch.

        Args:
            folder: A path that all pods share, or a URL of an object store.
            objects: Models, optimizers, and other objects that have `state_dict()` and `load_state_dict()`.
            every: Time between two checkpoints: a number of seconds, or text such as `"5m"`.
            keep: Number of checkpoints that are kept.

        Raises:
            Refused: An argument is not valid, or the pods do not share the folder.
        """
        with self._final():
            self._checkpoints = Checkpoints(self, folder, objects, every=every, keep=keep)
            return self._checkpoints

    def batches(self, phase: str, batches: Iterable[Any]) -> Epochs:
        """Return the data of `batches` for a library that drives the loop: each `iter()` is the phase's next epoch."""
        steps = self._phases.samplers[phase].total_steps

        def epoch() -> Iterator[Batch]:
            return self.epoch(phase, self.completed(phase) + 1, batches)

        self._driven.append(Epochs(self, phase, epoch, steps))
        return self._driven[-1]

    def state_dict(self) -> dict[str, str]:
        """Return how far the run is, the same on every rank: save it with the weights of the same moment.

        Batches that are not committed are not in it, so a resume hands them out again.
        """
        with self._final():
            self._phases.measure()
            positions = {name: each.saved for name, each in self._phases.open.items() if each.trains}
            return {_KEY: self._progress.state(self._attempt.run, positions).to_text()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was called, at any number of ranks: call it before the first epoch.

        Raises:
            Refused: The state is of another run, of a newer release, or damaged.
        """
        with self._final():
            if self._attempt.begun:
                raise Refused("load_state_dict() must be called before the first epoch of this start")
            if self._progress.loaded:
                raise Refused("load_state_dict() was called before in this start: an account takes one state")
            if _KEY not in state:
                found = ", ".join(map(str, state)) or "no entry"
                raise Refused(f"the state of an account must have the entry {_KEY!r}, and it has {found}")
            try:
                loaded = State.from_text(state[_KEY])
            except ValueError as error:
                raise Refused(f"the state of the account cannot be loaded: {error}") from None
            for name, value in (("task", self._task), ("seed", self._seed)):
                if (before := getattr(loaded, name)) != value:
                    raise Refused(f"the state is of another run: its {name} is {before}, and now it is {value}")
            self._progress.load(loaded)
            self._attempt.take_up(loaded, reported=self._checkpoints is not None)

    def begin_anew(self) -> None:
        """State that this start's weights are those of a beginning, as there is no checkpoint to load."""
        self._attempt.anew = True

    def completed(self, phase: str) -> int:
        """Return the number of a phase's completed epochs, over all starts of the run."""
        return self._progress.completed(phase)

    def settle(self, phase: str) -> None:
        """Prove an epoch that the loop left before its end, so that its line names the lost samples.

        Raises:
            Unproven: Samples were lost. All ranks raise it.
        """
        if phase in self._phases.open:
            self._phases.open[phase].end()
            self._close(self._phases.open[phase])

    def steps(self, phase: str, epoch: int) -> int:
        """Return the number of steps of an epoch of the plan. The last one of a plan in steps can have fewer."""
        return self._phases.steps(phase, epoch)

    def skipped(self, phase: str) -> int:
        """Return the number of steps of a phase's next epoch that a loaded state has, which are not made again."""
        return self._phases.skipped(phase)

    def reseed(self) -> None:
        """Seed the generators as they were when the last batch was handed out, for a library that has set its own."""
        randomness.reseed(self._randomness)

    def _epoch(self, phase: str, epoch: int, batches: Iterable[Any]) -> Iterator[Batch]:
        self.settle(phase)
        if epoch >= 1 and self._progress.was_complete(phase, epoch):
            return
        if self._progress.stopped is not None and self._phases.trains.get(phase):
            return
        current = self._phases.begin(phase, epoch, batches)
        if self._reports:
            self._reports.begin(current)
        seed = randomness.mixed(self._seed, randomness.number_of(phase), epoch, self.rank)
        if isinstance(batches, data.DataLoader):
            # iter() draws the workers' seed: not from the generator that the training uses.
            batches.generator = torch.Generator().manual_seed(seed & 0x7FFFFFFFFFFFFFFF)
        ours = isinstance(batches, loader.Loader)
        seed = randomness.mixed(seed, current.tally.phase.start)
        for taken in batches:
            if current.handed == current.total:
                raise Refused(f"{current.name}: the loader has more batches; its batch_size must be the sampler's")
            if self._checkpoints and current.trains:
                self._checkpoints.before_batch()
            known = taken if ours else loader.checked(taken, batches, current.where(current.handed + 1))
            batch = current.hand_out(known)
            self._phase = phase
            self._randomness = randomness.mixed(seed + batch.step)
            self.reseed()
            yield batch
            if self._failure:
                raise self._failure
            if current.stopped:
                return
            if not current.trains:
                current.count(current.handed)
        if self._checkpoints and current.trains:
            self._checkpoints.before_batch()
        if current.handed < current.total:
            raise Unproven(
                f"{current.name} is not proved: the loader ended after {current.handed} of {current.total} steps"
            )
        # A loop that fetches ahead commits its last batches after the end.
        if self._phases.open.get(phase) is current and not (current.trains and current.explicit):
            self._close(current)

    @contextmanager
    def _final(self) -> Iterator[None]:
        """Make a failure final, also for a loop that catches it."""
        if self._failure:
            raise self._failure
        try:
            yield
        except Ending as ending:
            self._failure = ending
            raise

    def _close(self, current: EpochInProgress) -> None:
        """Prove an epoch. Raises Unproven on every rank if samples are lost or doubled, Refused if data changed."""
        members, tally = self._attempt.members, current.tally
        name = tally.phase.name
        del self._phases.open[name]
        tally.commits = current.commits if current.trains else None
        proof = prove(tally, members.everyone, leads=members.leads, problem=self._phases.changed(name))
        if current.drops:
            current.drops.end()
        if self._reports:
            self._reports.close(current, proof)
        self._progress.close(proof.lines[-1])
        self._proved += 1
        try:
            enforce(proof, "enforce", self._proved == 1)
        except Unproven as sentence:
            raise Unproven(f"{sentence}{'' if current.complete else current.left}") from None

    def _finish(self) -> None:
        with self._final():
            for each in self._driven:
                each.end()
            for phase in list(self._phases.open):
                self.settle(phase)
            self._phases.measure()
            last = self._progress.last_line(self._attempt.run, self.discarded)
            if self._attempt.prints and last:
                emit(last)
            if self._reports and last:
                self._reports.complete(last)
            self._attempt.complete()
