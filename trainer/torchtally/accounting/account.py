"""Accounts for the samples of a user's loop: docs/guides/own-loop.md shows how.

A sample counts when it is in the weights: `commit()` after `optimizer.step()` says so. Where a phase does not train, a
batch counts when the loop asks for the next one. What was handed out and does not count is lost.
"""

import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed.nn  # imported after a group it would keep the group, whose threads can abort Python at exit
from torch.optim.optimizer import Optimizer

from torchtally.accounting.batches.collate import Batch
from torchtally.accounting.ledger.gradients import unwrapped
from torchtally.accounting.lifetime import Lifetime
from torchtally.accounting.loader import Loader
from torchtally.accounting.order.drawn import AnySampler
from torchtally.accounting.order.locality import Locality
from torchtally.accounting.order.own_sampler import batches_of, of_another_sampler
from torchtally.accounting.order.sampler import Sampler
from torchtally.accounting.proofs import kept_lines, proof_file
from torchtally.accounting.run import stateful
from torchtally.accounting.run.phases import Division
from torchtally.accounting.run.reports import problem
from torchtally.checkpoints import copied
from torchtally.checkpoints.checkpoints import Checkpoints
from torchtally.checkpoints.coordination import Rounds
from torchtally.checkpoints.objects import Objects
from torchtally.checkpoints.of_rank_0 import CheckpointsOfRank0
from torchtally.errors import Ending, Refused, as_int
from torchtally.pod import failure
from torchtally.proof.contract import Contract


class Account(Lifetime):
    """Records which samples the loops of one run consume, and proves them at the end of each epoch.

    Use it in a `with` statement. All ranks must make the same calls in the same order, and complete the plan before its
    end. What ends the run on a rank is told to the others: they raise it as well where they wait for that rank. A
    program without a launcher and without a process group is a world of one.

    It is `Stateful`, as torch's checkpoints name it: `state_dict` is a position, and `load_state_dict` resumes there.

    Args:
        task: Name of the run in its logs and proofs.
        epochs: Number of epochs of the only phase, `train`. `Steps(100_000)` or `Tokens(10**9, each=1024)` in place of
            a number ends the last epoch where these are reached.
        plan: The same for each of several phases, such as `{"train": 10, "test": 10}`. `Every(3)` is an epoch after
            each third one of the first phase.
        seed: Seed of the order of samples, from 0.
        group: The ranks that share the samples (default: all). With tensor, pipeline or context parallelism, that is
            the data-parallel group: `mesh["dp"].get_group()`. Ranks outside it have groups of their own.
        anew: Whether a restart that loads no state begins anew. Otherwise it is refused, as its weights may not.
        order: Order of the phases that shuffle: a `Locality` for data in shard files (default: one over all samples).
    """

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

    def sampler(
        self,
        phase: str,
        n: int | None = None,
        *,
        batch_size: int | None = None,
        global_batch_size: int | None = None,
        shuffle: bool = True,
        contract: Contract = "exact",
        drop_last: bool = False,
        fingerprint: str | None = None,
        trains: bool = True,
        order: Locality | None = None,
        **others: Any,
    ) -> Sampler:
        """Return this rank's sampler of a phase, for a DataLoader of your own.

        Args:
            phase: A phase of the plan.
            n: Number of samples of the dataset.
            batch_size: Samples of this rank in a step.
            global_batch_size: Samples of all ranks in a step, in place of it. Then the steps are the same at any number
                of ranks, and the DataLoader takes `batch_sampler=sampler.batches`.
            shuffle: Whether each epoch has a new order. Otherwise, the order is that of the dataset.
            contract: How the samples divide over the ranks: `exact`, `padded`, or `drop_last`.
            drop_last: Whether a last step that has fewer samples is left out. They count as dropped by the program.
            fingerprint: Text that identifies the data and must be the same on all ranks. Without it, only `n` is
                compared.
            trains: Whether the samples go into the weights, so that `commit` counts them. Otherwise, as in an
                evaluation, a batch counts when the loop asks for the next one.
            order: Order of a phase that shuffles (default: that of the account), with the sizes of the shard files.
            others: Arguments that other samplers have, such as `num_replicas`: none is taken.

        Raises:
            Refused: An argument is not valid.
        """
        n = as_int(n)
        with self._counting.final:
            if others or type(phase) is not str or type(n) is not int:
                raise Refused(of_another_sampler(phase, n, others))
        division = Division(batch_size, global_batch_size, shuffle, contract, drop_last, trains, order)
        return self._phases.declare(phase, n, division, fingerprint)

    def loader(
        self,
        dataset: Any,
        phase: str | None = None,
        *,
        batch_size: int | None = None,
        global_batch_size: int | None = None,
        shuffle: bool = True,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[list[int]] | None = None,
        contract: Contract = "exact",
        drop_last: bool = False,
        trains: bool = True,
        order: Locality | None = None,
        **options: Any,
    ) -> Loader:
        """Return a loader that yields what any DataLoader yields, and accounts for it: each `iter()` is the next epoch.

        All ranks have the same number of batches. A rank that has no sample left in the last one gets an empty batch,
        or a filler where `weigh` multiplies its loss with 0. In a phase that does not train, each rank has
        one in the last step: it takes some of the step before, unless `batch_size` is 1.

        Args:
            dataset: A map-style dataset. If it has an attribute `fingerprint`, a text, that must be the same on all
                ranks. Otherwise, the lengths and the contents of a few samples are compared.
            phase: A phase of the plan (default: its only one).
            batch_size: Samples of this rank in a step.
            global_batch_size: Samples of all ranks in a step, in place of it. Then the steps are the same at any number
                of ranks.
            shuffle: Whether each epoch has a new order. Otherwise, the order is that of the dataset.
            sampler: An order of your own, as a DataLoader takes it. If it draws the same on all ranks, they take turns
                with its batches. Otherwise, each rank has what it draws itself. This is a collective call then.
            batch_sampler: The same in batches of your own, which can have different sizes.
            contract: How the samples divide over the ranks: `exact`, `padded`, or `drop_last`. With a sampler of your
                own, `exact` or `as_drawn`: each sample as often as it is drawn.
            drop_last: Whether a last step that has fewer samples is left out. They count as dropped by the program.
            trains: Whether the samples go into the weights. Otherwise, as in an evaluation, a batch counts when the
                loop asks for the next one.
            order: Order of a phase that shuffles (default: that of the account). The dataset's attribute `shard_sizes`
                has the sizes of its shard files, unless the order has them.
            options: Other arguments of the DataLoader, such as `num_workers` and `collate_fn`.

        Raises:
            Refused: An argument is not valid, or the dataset lacks a method.
        """
        with self._counting.final:
            phase = self._phases.named(phase)
            division = Division(batch_size, global_batch_size, shuffle, contract, drop_last, trains, order)
            own = batches_of(sampler, batch_sampler, batch_size, drop_last)
            made = self._phases.make_loader(phase, dataset, division, own, options)
        return self.batches(phase, made)

    def epochs(self) -> Iterator[int]:
        """Yield the epochs that are left: all of the plan's, or from the one in progress on if a state is loaded.

        A plan in steps or tokens needs the phase's loader or sampler before.
        """
        with self._counting.final:
            self._phases.measure()
        for epoch in self._progress.left({name for name, trains in self._phases.training.items() if not trains}):
            yield epoch
            with self._counting.final:
                self._counting.catch_up()

    def stop(self, reason: str) -> None:
        """End the run here, on purpose: call it on all ranks after the same step. A collective call.

        What counts is proved, and the last line states the reason. Epochs that do not train can still be made.

        Args:
            reason: Why the run ends before its plan, such as `patience`.
        """
        with self._counting.final:
            self._counting.stop(reason, self.position_dict()[stateful.KEY])

    def epoch(self, phase: str, epoch: int | None, batches: Iterable[Any]) -> Iterator[Batch]:
        """Yield the batches of one epoch, which is proved once all of them count.

        After `load_state_dict`, an epoch in progress resumes at its position, and one that was complete has no batch.

        Args:
            phase: A phase with a loader or a sampler.
            epoch: Number of the epoch, from 1, or None for the next one.
            batches: The phase's loader, or a DataLoader of your own with the phase's sampler.

        Raises:
            Unproven: Samples were lost or duplicated. All ranks raise it. Or a batch has other samples than its step.
            Refused: The epoch is not the next one, the ranks contradict each other, or `batches` is not valid.
        """
        for each in self._counting.loop(phase, epoch, batches.given if isinstance(batches, Loader) else batches):
            yield each.batch

    def optimizer(self, optimizer: Optimizer, *, replicated: bool = True) -> None:
        """Count the batches whose gradients the steps of this optimizer use: call it before the first batch.

        Its `zero_grad` is wrapped: batches whose gradients it clears before a step count as dropped by the program.
        A step that a GradScaler leaves out is such a case.

        Args:
            optimizer: One of PyTorch, or a library's wrapper that has it as its attribute `optimizer`.
            replicated: Whether its steps leave the same weights on all ranks, as with DDP. They do not with experts of
                each rank, ensembles, or weights that are averaged after steps: local SGD, federated averaging. The last
                line of the run says that they were not compared.

        Raises:
            Refused: It is no optimizer of PyTorch, or an epoch has begun without one.
        """
        with self._counting.final:
            optimizer = unwrapped(optimizer)
            if not isinstance(optimizer, Optimizer):
                raise Refused(f"account.optimizer() takes a torch.optim.Optimizer, not a {type(optimizer).__name__}")
            self._counting.name(optimizer, replicated=replicated)

    def weigh(self, loss: torch.Tensor, *batches: Any, normalized: bool = False) -> torch.Tensor:
        """Tie a loss to its batches, and return it: they count once a named optimizer steps with its gradients.

        The loss is the mean over the samples of its batches on this rank. Its value stays. Its gradients are multiplied
        with this rank's share of the samples in the step. What DDP averages is then the gradient of the mean over all
        samples of the step. A rank without samples in a step receives a filler, whose share is 0.

        Args:
            loss: A scalar, before its backward pass.
            batches: What the loop has received (default: the only batch that has no loss yet). A loop that fetches
                ahead names its batch, and one with one loss for several names them all.
            normalized: Whether the loop has normalized the loss over all ranks itself, such as by the number of tokens.
                Then its gradients stay, but for those of a filler.

        Raises:
            Refused: It is not clear which batches these are.
        """
        counting = self._counting
        if counting.final.failure:
            raise counting.final.failure
        counting.committer = threading.current_thread(), self._progress.body.begun
        try:
            return counting.gradients.weigh(loss, batches, normalized=normalized)
        except Ending as ending:
            counting.final.fail(ending)
            raise

    def holds(self, *batches: Any) -> None:
        """State that the gradients that are there now are those of these batches: call it before `optimizer.step()`.

        A loop needs it that moves the gradients of batches aside, clears them, and assigns what it makes of them. A
        batch whose gradients were cleared, and that it does not name, counts as dropped by the program.

        Args:
            batches: What the loop has received. Their losses went through `weigh`.

        Raises:
            Refused: A batch has no loss, counts, or is dropped already, or no gradients are there.
        """
        with self._counting.final:
            self._counting.gradients.hold(batches)

    def commit(self, *batches: Batch) -> None:
        """Count the samples that are in the weights now: call it after each `optimizer.step()`.

        Without an argument, these are all batches that were handed out. A loop that fetches ahead passes the last batch
        (of each phase) whose gradients the step has used. Several batches a step, as in gradient accumulation, count
        together. The commit of an epoch's last batch proves the epoch, which is a collective call.

        Raises:
            Unproven: The epoch is complete, and samples were lost or duplicated. All ranks raise it.
            Refused: No batch is left to count, or the account has received an optimizer, whose steps count.
        """
        with self._counting.final:
            self._counting.commit(*batches)

    def skip(self, reason: str, batch: Batch | None = None) -> None:
        """Count a batch as dropped because the loop leaves it out of the weights. A collective call.

        All ranks call it for the same step, in place of its backward pass, or of `commit()`. If the batch had a
        backward pass, clear its gradients. Batches whose gradients are cleared with them count as dropped as well. A
        loop that commits by hand skips each of them.

        Args:
            reason: Why, such as `loss is not finite`.
            batch: The batch (default: the last one that was handed out).

        Raises:
            Unproven: The epoch is complete, and samples were lost or duplicated. All ranks raise it.
            Refused: The ranks skip different steps, or the batch counts already. A later call raises it if an optimizer
                has stepped with the gradients of the batch.
        """
        with self._counting.final:
            self._counting.skip(reason, batch)

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
            with self._counting.final:
                raise Refused(wrong)
        if self._reports:
            self._reports.log(self._counting.phase, numbers)

    def checkpoints(
        self,
        folder: str | os.PathLike[str],
        objects: Mapping[str, Any],
        *,
        every: float = 300,
        keep: int = 2,
        of_rank_0: bool = False,
    ) -> Rounds:
        """Return checkpoints of the loop's objects, saved between steps: docs/guides/checkpoints.md shows how.

        A collective call. Call `resume()` on the result before the first epoch.

        Args:
            folder: A path that all pods share, or a URL of an object store.
            objects: Models, optimizers, and other objects that have `state_dict()` and `load_state_dict()`.
            every: Seconds between two checkpoints.
            keep: Number of checkpoints that are kept.
            of_rank_0: Whether rank 0 alone has the folder, a path. It saves the objects, which must be equal on all
                ranks, as one file, and sends it to the others when they resume.

        Raises:
            Refused: An argument is not valid, or the pods do not share the folder.
        """
        with self._counting.final:
            if not isinstance(objects, Mapping):
                kind = type(objects).__name__
                raise Refused(f"checkpoints: objects must be a dictionary, such as {{'model': model}}, not a {kind}")
            if own := [name for name, each in objects.items() if each is self]:
                raise Refused(f"checkpoints: {own[0]!r} is the account, whose state every checkpoint has: leave it out")
            if self._counting.checkpoints is not None:
                raise Refused("checkpoints() is called a second time: pass all objects to one call")
            kind = CheckpointsOfRank0 if of_rank_0 else Checkpoints
            self._counting.checkpoints = kind(self, folder, objects, every=every, keep=keep)
            return self._counting.checkpoints

    def asked_to_stop(self) -> bool:
        """Return whether a rank has received SIGTERM or SIGINT: save a checkpoint then. `checkpoints` do so themselves.

        A collective call. Call it on all ranks after the same step, from the first one on. In place of the next batch,
        the account ends this start, which a retry resumes.
        """
        with self._counting.final:
            return not self._counting.checkpoints and self._counting.asked.ask()

    def stop_as_asked(self) -> None:
        """End a start that was asked to stop, for a library that has fetched the next batch. A collective call."""
        with self._counting.final:
            self._counting.stop_as_asked()

    def replaced(self, reason: str) -> None:
        """State that the program has replaced the weights on purpose: call it on all ranks, after that.

        The last line of the run repeats the reason.

        Args:
            reason: What the weights are now, such as `the best of the validation`.

        Raises:
            Refused: The run has ended, or the reason is no printable text.
        """
        with self._counting.final:
            if self.last_line is not None:
                raise Refused("replaced() must come before the end of the account's `with` statement")
            self._counting.replaced(reason)

    def save_problem(self, objects: Objects) -> str | None:
        """Return what is wrong with a checkpoint of these objects."""
        return self._guards.saves(objects)

    def write_proof(self, path: str | os.PathLike[str], *files: str | os.PathLike[str]) -> None:
        """Write the run's proof as a statement about these files, on rank 0: docs/guides/archive.md shows its use.

        Call it after the `with` statement, once the files are written. Other ranks do nothing.

        Args:
            path: File to write, such as `output/proof.json`.
            files: The files of the model, at least one, and checkpoints of these weights. A checkpoint that is a folder
                stands for its `manifest.json`, which has the hashes of its files.
        """
        try:
            if self.last_line is None:
                raise Refused("write_proof() must come after the end of the account's `with` statement")
            if wrong := self._guards.ends():
                raise Refused(f"write_proof(): {wrong}")
            if self._attempt.prints:
                lines = kept_lines.lines(self.last_line["run"])
                proof_file.write_of(Path(path), [*map(Path, files)], lines, self.last_line)
        except Ending as ending:
            failure.record(ending)
            raise

    def batches(self, phase: str, batches: Iterable[Any]) -> Loader:
        """Return a loader of batches of your own, such as a DataLoader with the phase's sampler.

        Raises:
            Refused: The phase has no sampler.
        """
        with self._counting.final:
            self._phases.check_declared(phase)
        given = batches.given if isinstance(batches, Loader) else batches
        handed = partial(self._counting.loop, phase, None, given)
        self._driven.append(Loader(self, phase, given, handed, self._phases.training[phase]))
        return self._driven[-1]

    @property
    def samplers(self) -> Mapping[str, AnySampler]:
        """This rank's part of an epoch's order, by phase."""
        return self._phases.samplers

    def state_dict(self) -> dict[str, str]:
        """Return how far the run is, the same on every rank: save it with the weights of the same moment.

        Batches that do not count are not in it, so a resume hands them out again. Not a collective call.

        Raises:
            Refused: A batch has no gradients in the weights, and a later one does.
        """
        return self._state(hashes=True)

    def position_dict(self) -> dict[str, str]:
        """Return `state_dict()` without hashes of weights, for what saves and loads them itself, or asks in each step.

        Raises Refused as `state_dict` does.
        """
        return self._state(hashes=False)

    def _state(self, *, hashes: bool) -> dict[str, str]:
        with self._counting.final:
            self._counting.check_saved()
            self._counting.asked.saved = True
            return stateful.state(self._phases, self._progress, self._attempt, self._guards, hashes=hashes)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was called, at any number of ranks: call it before the first epoch.

        Raises:
            Refused: The state is of another run, of a newer release, or damaged.
        """
        with self._counting.final:
            reported = self._counting.checkpoints is not None
            stateful.load(state, self._progress, self._attempt, self._guards, reported=reported)

    def resume_from(self, path: str | os.PathLike[str] | None) -> Path | None:
        """Return rank 0's checkpoint as this rank finds it, for a library to load; None if the run begins anew.

        A collective call. A pod that does not see rank 0's file or folder receives a copy, which is removed at the end
        of the `with` statement.

        Args:
            path: The newest checkpoint, a file or a folder, if there is one. Rank 0 decides.

        Raises:
            Refused: It is a URL.
            Volume: It cannot be read or copied. All ranks raise it.
        """
        with self._counting.final:
            found = copied.of_rank_0(path, self._attempt.run.pod, self._attempt.members.everyone, self._copies)
            self._attempt.resumes |= found is not None
            self._attempt.anew |= found is None
            return found

    @property
    def anew(self) -> bool:
        """Whether the program has said that a restart that loads no state begins anew."""
        return self._anew

    def begin_anew(self) -> None:
        """State that this start's weights are those of a beginning, as there is no checkpoint to load."""
        self._attempt.anew = True

    def completed(self, phase: str) -> int:
        """Return the number of a phase's completed epochs, over all starts of the run."""
        return self._progress.completed(phase)

    def after_step(self) -> None:
        """Take note that a library has made a step, or left it out for gradients that overflow. A collective call.

        Batches whose gradients no optimizer has used by then count as dropped. An epoch that is complete is proved.
        """
        with self._counting.final:
            self._counting.after_step()

    def steps(self, phase: str, epoch: int) -> int:
        """Return the number of steps of an epoch of the plan. The last one of a plan in steps can have fewer."""
        return self._phases.steps(phase, epoch)

    def skipped(self, phase: str) -> int:
        """Return the number of steps of a phase's next epoch that a loaded state has, which are not made again."""
        return self._phases.skipped(phase)

    def reseed(self) -> None:
        """Seed the generators as they were when the last batch was handed out, for a library that has set its own."""
        self._counting.reseed()
