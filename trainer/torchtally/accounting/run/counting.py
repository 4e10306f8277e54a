"""Counts the batches that an account hands out to the loop, and proves each epoch once all of them count."""

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import Optimizer
from torch.utils import data

from torchtally.accounting import randomness
from torchtally.accounting.batches.collate import Batch
from torchtally.accounting.batches.step_loader import StepLoader, Taken, checked
from torchtally.accounting.guards.apart import Apart
from torchtally.accounting.guards.guards import Guards
from torchtally.accounting.ledger.batch_in_flight import Handed
from torchtally.accounting.ledger.epoch_in_progress import EpochInProgress
from torchtally.accounting.ledger.gradients import OUTSIDE, Gradients
from torchtally.accounting.proofs.printing import emit_last
from torchtally.accounting.proofs.proving import enforce, prove
from torchtally.accounting.reporting.meeting import Meeting
from torchtally.accounting.reporting.pace import Pace
from torchtally.accounting.reporting.step_time import StepTime
from torchtally.accounting.run.attempt import Attempt, Final
from torchtally.accounting.run.phases import Phases
from torchtally.accounting.run.progress import Progress
from torchtally.accounting.run.reports import Reports
from torchtally.checkpoints.coordination import Rounds
from torchtally.checkpoints.objects import parameters_of
from torchtally.checkpoints.stopping import Asked
from torchtally.distributed import process_group
from torchtally.errors import Refused, Unproven
from torchtally.log import log
from torchtally.proof import line as tally_line

if TYPE_CHECKING:
    from torchtally.monitoring.prometheus import Exporter

_LEFT_OUT = "its step was left out, as where gradients overflow"


class Counting:
    """What one start of a run counts.

    Attributes:
        checkpoints: Told of each commit and each batch, if there are any.
        asked: Whether to stop, where there are none.
        phase: Name of the phase of the last batch.
        gradients: The batches whose gradients the steps of named optimizers use.
        final: What every call of the program runs in: a failure is final, also for a loop that catches it.
        committer: The thread that was the last to weigh a loss or to commit, and the number of that epoch's body.
    """

    def __init__(
        self,
        attempt: Attempt,
        progress: Progress,
        phases: Phases,
        gradients: Gradients,
        guards: Guards,
        reports: Reports | None,
        pace: Pace | None,
        exporter: "Exporter | None",
    ):
        self._attempt, self._progress, self._phases, self._guards = attempt, progress, phases, guards
        self.gradients, self._open = gradients, gradients.open
        self._reports, self._pace, self._exporter = reports, pace, exporter
        self._steps = StepTime()
        self._meeting: Meeting | None = None  # once the run is known
        self.checkpoints: Rounds | None = None
        self.asked = Asked()
        self.phase = next(iter(progress.given), "")
        self._counts = 0  # steps of named optimizers that are taken note of
        self._trained = gradients.turns.trained  # what was looked at between two steps
        self._proved = 0  # epochs of this attempt
        self._randomness = 0  # the seed of the last batch, to be mixed
        self.final = Final(attempt.tell)
        self.committer: tuple[threading.Thread | None, int] = None, 0
        self._left_over: str | None = None  # the epoch that was stopped with a batch that does not count
        self._counts_at_stop = 0

    def loop(self, phase: str, epoch: int | None, batches: Iterable[Any]) -> Iterator[Handed | Taken]:
        """Yield the batches of one epoch, the next one by default. Raises Unproven and Refused."""
        with self.final:
            self._may_begin(phase)
            self.settle(phase)
            trains = self._phases.training.get(phase)
            within, beyond = epoch is not None or self._progress.body.within, None
            if epoch is None:
                epoch = (self._progress.upcoming if trains else self._progress.evaluation)(phase)
                beyond = self._phases.beyond(phase, epoch) if trains and self.gradients.watches else None
            if beyond and self._progress.stopped is None:
                yield from self._beyond(phase, epoch, batches, beyond)
            else:
                with self._progress.body.loop(epoch) if trains and within else nullcontext():
                    yield from self._batches(phase, epoch, batches)

    def _may_begin(self, phase: str) -> None:
        """Raise Refused in a thread beside the one that trains, where this would meet the collective calls of that."""
        beside = self.committer[0] not in (None, threading.current_thread())  # none trains before the first loss
        waiting = self.gradients.handed.without_loss(phase) if beside else None
        if waiting and self._attempt.members.everyone.size() > 1:
            raise Refused(
                f"{waiting.place}: another thread than the one that trains begins the next epoch while this batch has "
                "no loss: fetch batches in the thread that trains, and read ahead by the loader's num_workers"
            )

    def _beyond(self, phase: str, epoch: int, batches: Iterable[Any], why: str) -> Iterator[Taken]:
        """Yield batches of an epoch that the plan does not have, which a loop that fetches ahead does not train."""
        self.gradients.handed.beyond, self.gradients.handed.looked = why, False
        self._phases.samplers[phase].set_epoch(epoch)
        try:
            for taken in batches:
                yield taken if isinstance(taken, Taken) else checked(taken, batches, f"{phase} epoch {epoch}")
        finally:
            self.gradients.handed.looked = True

    def _batches(self, phase: str, epoch: int, batches: Iterable[Any]) -> Iterator[Handed]:
        """Yield the batches of one epoch, once those before it are settled."""
        if getattr(batches, "next_iter_state", None) is not None:  # as torchdata names it
            raise Refused(
                f"the state of the {type(batches).__name__} was loaded, which would skip batches once more "
                "than the account does: load the account's state alone"
            )
        if epoch >= 1 and self._progress.was_complete(phase, epoch):
            return
        if self._progress.stopped is not None and self._phases.training.get(phase):
            return
        *complete, current = self._phases.begin(phase, epoch, batches)
        current.weighed = current.trains and self.gradients.watches
        for each in complete:
            each.weighed = current.weighed
            self._close(each)
        if current.weighed and not current.reached and len(self._open[phase]) == 1:
            self.gradients.weights.begin(phase)
        if wrong := self._guards.problem():
            raise Refused(f"{current.name}: {wrong}")
        run = replace(current.tally.run, data=self._phases.fingerprint)
        if self._exporter:
            self._exporter.open(run)
            if current.trains:
                self._exporter.begin(current, self._steps)
        if self._reports:
            self._reports.begin(current, run, self.checkpoints)
        if current.trains:
            self._steps.begin()
            apart = self._guards.apart if self._guards.has(Apart) else None
            self._meeting = self._meeting or Meeting(self._attempt.run, self._steps, apart)
            if self._pace:
                self._pace.begin(phase, current.samples(0, current.counted), self._phases.share)
        seed = randomness.mixed(self._attempt.run.seed, randomness.number_of(phase), epoch, self._attempt.members.rank)
        if isinstance(batches, data.DataLoader):
            # iter() draws the workers' seed: not from the generator that the training uses.
            batches.generator = torch.Generator().manual_seed(seed & 0x7FFFFFFFFFFFFFFF)
        if isinstance(batches, StepLoader):
            batches.fills = current.weighed
        seeded = getattr(batches, "seeds", None) is True
        for taken in self._steps.fetched(batches) if current.trains else batches:
            if current.ended:
                raise Refused(f"{current.name}: the loader has more batches; its batch_size must be the sampler's")
            if current.begun_again:
                raise Refused(
                    f"{current.name}: the loop has begun it again, and continues with its first iterator: after "
                    "iter(), take batches of the new one only"
                )
            if self.checkpoints and current.trains and not current.repeats:
                self._before_batch(self.checkpoints, current)
            if self.asked.number and current.trains:
                self.stop_as_asked()
            known = taken if isinstance(taken, Taken) else checked(taken, batches, current.where(current.handed + 1))
            batch = current.hand_out(known)
            if current.weighed:
                self.gradients.handed.add(batch)
            if self.gradients.watches and self._is_loop:
                self.gradients.arrive(current)
            self.phase = phase
            self._randomness = seed + batch.position
            if not seeded:
                self.reseed()
            try:
                yield batch
            except GeneratorExit:  # the loop leaves the epoch, for good or by an error: other ranks may not
                current.abandoned = True
                self.gradients.leave(batch)
                raise
            self.final.check()
            self.catch_up()
            if current.stopped:
                break
            if not current.trains:
                current.commit()
        self.gradients.beside.leave(current)
        if current.handed < current.total:
            raise Unproven(
                f"{current.name} is not proved: the loader ended after step {current.handed} of {current.total}"
            )
        # The last batches of a loop that fetches ahead, or accumulates, count after the end.
        if not current.trains and current in self._open.all:
            self._close(current)

    def name(self, optimizer: Optimizer, *, replicated: bool) -> None:
        """Have the steps of an optimizer count batches: `Account.optimizer`. Raises Refused."""
        for current in self._open.all:
            if current.trains and not current.weighed:
                raise Refused(
                    f"{current.where(current.handed)}: account.optimizer() must come before the first batch of the "
                    "epoch, as the steps of the optimizer count its batches"
                )
        self.gradients.name(optimizer, replicated=replicated)
        if not replicated and self._attempt.members.everyone.size() > 1:
            self._guards.say(["weights not compared between ranks: replicated=False"])
        if self._attempt.prints:
            for each in parameters_of(optimizer):
                process_group.warn_of_gloo(each.device)

    def catch_up(self) -> None:
        """Take note of the steps of optimizers, and prove what is complete. A call of all ranks, between two steps."""
        self._note_steps()
        if self._is_loop:
            for phase in [*self._open]:
                self._prove_decided(phase, overdue=0)

    @property
    def _is_loop(self) -> bool:
        """Whether this is the thread that trains."""
        return threading.current_thread() is (self.committer[0] or threading.main_thread())

    def _prove_decided(self, phase: str, *, overdue: int, again: bool = False, ends: bool = False) -> None:
        """Prove a phase's epochs that are decided on all ranks, and the first ones that are `overdue` on any.

        The last one is none if the program begins it `again` on all ranks. A call of all ranks, each of which was
        handed all batches of an epoch, or has one that is overdue.
        """
        epochs = self._open[phase]
        if not overdue and not any(each.weighed and each.ended for each in epochs):
            return
        if overdue or epochs[-1].ended:
            self.gradients.settle(overdue=overdue > 0, ends=ends)
        self._attempt.check_group(f"{epochs[0].name} is not proved")
        counts = torch.tensor([epochs.decided, -max(overdue, epochs.passed), again])
        dist.all_reduce(counts, dist.ReduceOp.MIN, self._attempt.members.everyone)
        least, most, begins_again = counts.tolist()
        for each in epochs[: least if begins_again else max(least, -most)]:
            self._close(each)
        if begins_again:
            self._begin_again(epochs[-1])

    def _begin_again(self, current: EpochInProgress) -> None:
        """Let go of an epoch of which the program has looked at the first batches alone."""
        current.begun_again = True
        self._open[current.phase].remove(current)
        self.gradients.handed.forget(current)

    def after_step(self) -> None:
        """Drop what a library's step has left out, and catch up: `Account.after_step`. A call of all ranks."""
        self._note_steps()
        if left := self.gradients.held:
            for each in left:
                self.gradients.skip(each.epoch, each.step, _LEFT_OUT)
            # A state of any rank has then what all have dropped.
            self._attempt.agree({"steps left out": [each.place for each in left]}, None, call="after_step()")
        self.catch_up()

    def _note_steps(self) -> None:
        """Take note of what optimizers have stepped since the last call. Not a call of all ranks."""
        if self.gradients.beside.outside:
            self._guards.say([OUTSIDE])
        if self._counts == self.gradients.turns.counts or threading.current_thread() is not self.committer[0]:
            return
        self._counts = self.gradients.turns.counts
        if self._trained is not self.gradients.turns.trained:
            self._trained = self.gradients.turns.trained
            if wrong := self._guards.problem():
                raise Refused(wrong)
        self._after_step()

    def check_saved(self) -> None:
        """Refuse a state of this moment if the weights have more samples than those that count."""
        self._note_steps()
        for gap in (epochs.gap for epochs in self._open.values() if epochs):
            if gap:
                raise Refused(
                    f"{gap}: the batch has no gradients in the weights, and later ones do, so a state cannot tell how "
                    "far the epoch is: call skip(reason) for a batch that is left out"
                )
        for current in self._open.all:
            if not current.trains and (wrong := self._guards.closes(current.phase, current.name)):
                raise Refused(wrong)

    def commit(self, *batches: Batch) -> None:
        """Count what is in the weights: `Account.commit`. Raises Unproven and Refused."""
        if any(each.weighed for each in self._open.all):
            raise Refused(
                "commit() is for loops that name no optimizer: account.optimizer() was called, so the steps of the "
                "optimizer count the batches whose losses account.weigh() has received"
            )
        for batch in batches:
            _check_is_batch("commit()", batch)
            current = next(iter(self._open[batch.phase]), None)
            if current is None or not current.trains:
                raise Refused(f"commit() must receive a batch of an epoch in progress that trains, not {batch!r}")
            current.commit_upto(batch)
        if not batches:
            if not (pending := self._open.pending):
                raise Refused(
                    "commit() has no batch to count: none is handed out and not committed; a loop that fetches "
                    "ahead must pass the batch: commit(batch)"
                )
            for current in pending:
                current.commit()
        self._after_step()

    def _after_step(self) -> None:
        """Take note of a step whose batches count."""
        ended = time.perf_counter()
        training = [each for epochs in self._open.values() for each in epochs if each.trains]
        if self._reports:
            for current in training:
                self._reports.stepped(current)
        self._steps.stepped(ended)
        if self._meeting:
            self._meeting.stepped(self.phase, self._progress.completed)
        for current in training:
            if self._pace and self._pace.due:
                loss = self._reports.loss(current.phase) if self._reports else None
                self._pace.report(current, self._phases.share, loss, self._steps.total)
            if current.complete and not current.weighed:
                self._close(current)
        self.committer = threading.current_thread(), self._progress.body.begun
        if self.checkpoints:
            self.checkpoints.after_commit()
        self._steps.begin()

    def skip(self, reason: str, batch: Batch | None) -> None:
        """Count a batch as dropped: `Account.skip`. Raises Unproven and Refused."""
        if batch is not None:
            _check_is_batch("skip()", batch)
        current = self._open[batch.phase if batch else self.phase].find(batch)
        wrong = tally_line.text_problem("reason", reason)
        steps: list[int] = []
        if current is None or not current.trains:
            wrong = "skip() must have a batch of an epoch in progress that trains"
        else:
            step = batch.step if batch else current.handed
            wrong = wrong or current.unskippable(step, batch)
            steps = [step]
        if current and not wrong:
            # Before the ranks agree: then a state of any rank has what all have dropped.
            self.gradients.skip(current, steps[0], reason)
        self._attempt.agree({"steps to skip": [current and current.name, *steps]}, wrong, call="skip()")
        if current and current.weighed:
            self._prove_decided(current.phase, overdue=0)
        elif current and current.complete:
            self._close(current)

    def stop(self, reason: str, state: str) -> None:
        """End the run after what counts: `Account.stop`. Raises Unproven and Refused."""
        self.catch_up()
        opened = {each.phase for each in self._open.all}
        wrong = tally_line.text_problem("reason", reason) or self._progress.stop_problem(opened)
        self._attempt.agree({"reason to stop": reason, "state": state}, wrong, call="stop()")
        self.gradients.settle(overdue=True, ends=True)
        self.gradients.weights.keep(known=False)
        self._progress.stopped = reason
        for current in self._open.all:
            if current.trains and current.handed > current.counted:
                self._left_over, self._counts_at_stop = current.name, self.gradients.turns.counts
            if not current.complete:
                current.stop()
            if current.trains and current.position.consumed:
                self._close(current)
            else:
                self._open[current.phase].remove(current)

    def settle(self, phase: str, *, ends: bool = False) -> None:
        """Prove what the loop has left, as the next epoch of the phase begins, or the run `ends`. Raises Unproven.

        An epoch whose last batches wait for a step stays open until the next one has ended as well. One of which the
        program has looked at the first batches alone, as by `next(iter(loader))`, begins again.
        """
        self._note_steps()
        epochs = self._open[phase]
        if epochs and (last := epochs[-1]).weighed:
            again = not ends and last.untouched and not self.gradients.handed.has_loss(last)
            overdue = len(epochs) if ends or not last.ended else epochs.overdue
            self._prove_decided(phase, overdue=overdue, again=again, ends=ends)
        else:
            for each in [*epochs]:
                if not ends and not each.trains and each.untouched:
                    self._begin_again(each)
                else:
                    self._close(each)
        if epochs:
            self._progress.waiting[phase] = len(epochs)

    def finish(self, discarded: int, model: str | None) -> dict[str, Any] | None:
        """Prove what is left; print and return the last line of the run. Raises Unproven and Refused."""
        self.catch_up()
        for phase in [*self._open]:
            self.settle(phase, ends=True)
        if self.checkpoints:
            self.checkpoints.finish()
        if self._left_over and self.gradients.turns.counts > self._counts_at_stop:
            raise Unproven(
                f"the run is not proved: after stop(), an optimizer has stepped with a batch of {self._left_over} that "
                "was handed out and does not count: call stop() after optimizer.step(), and train no more"
            )
        if wrong := self._guards.ends():
            raise Unproven(f"the run is not proved: {wrong}")
        self._phases.measure()
        last = self._progress.last_line(self._attempt.run, self._guards.caveats, discarded, model)
        for phase, made in last["phases"].items() if last and self.gradients.cleared else ():
            if self._phases.training.get(phase) and not made["consumed"]:
                raise Unproven(
                    f"{phase} is not proved: all of its gradients were cleared before a step, or are 0, so no sample "
                    "is in the weights: account.optimizer() must receive the optimizers that step, and account.holds() "
                    "the batches whose gradients the loop has put there itself"
                )
        if self._attempt.prints and last:
            emit_last(last)
        if self._reports and last:
            self._reports.complete(last)
        return last

    def stop_as_asked(self) -> None:
        """End a start that was asked to stop: `Account.stop_as_asked`. A call of all ranks. Raises Stopped."""
        self.asked.end(self._attempt.run.source, self._phases.reached)

    def replaced(self, reason: str) -> None:
        """Take the weights of now for those of the last step: `Account.replaced`. Raises Refused."""
        self._note_steps()
        if wrong := tally_line.text_problem("reason", reason):
            raise Refused(wrong)
        self.gradients.weights.keep(known=True)
        self._guards.say([f"weights replaced by the program: {reason}"])

    def reseed(self) -> None:
        """Seed the generators as they were when the last batch was handed out."""
        randomness.reseed(randomness.mixed(self._randomness))

    def close(self) -> None:
        """No longer watch the optimizers."""
        self.gradients.close()
        self.asked.close()
        if not self._attempt.is_complete:
            self._guards.unfinished.leave(self._attempt.run.run)

    def _before_batch(self, checkpoints: Rounds, current: EpochInProgress) -> None:
        """Save a checkpoint if one is due. Raises Refused in another thread than the loop's, which may be in a step.

        No step is in progress where the body of the next epoch has begun, or where the thread that commits has ended:
        each epoch may have a thread of its own.
        """
        thread, body = self.committer
        over = body < self._progress.body.begun or not (thread and thread.is_alive())
        if thread not in (None, threading.current_thread()) and (self._open.pending or not over):
            raise Refused(
                f"{current.name}: another thread than the one that commits has fetched a batch, so a checkpoint could "
                "hold half of a step: fetch batches in the thread that commits, and read ahead by the loader's "
                "num_workers"
            )
        self._steps.pause()
        checkpoints.before_batch()
        self._steps.go_on()

    def _close(self, current: EpochInProgress) -> None:
        """Prove an epoch. Raises Unproven on every rank if samples are lost or duplicated, Refused if data changed."""
        members, name = self._attempt.members, current.phase
        self._attempt.check_group(f"{current.name} is not proved")
        self._open[name].remove(current)
        current.close()
        problem = self._guards.closes(name, current.name)
        told, caveats = self._guards.tells(name) if current.weighed else {}, len(self._guards.caveats)
        judge = partial(self._guards.judges, current.name)
        proof = prove(current.tally, members.everyone, leads=members.leads, problem=problem, told=told, judge=judge)
        if current.weighed:
            self.gradients.weights.close(name)
            if any(each.first is None for each in self._open[name][:1]):  # the next epoch, which has begun before
                self.gradients.weights.begin(name)
        for caveat in self._guards.caveats[caveats:] if self._attempt.prints else ():
            log.warning(caveat)
        if current.drops:
            current.drops.end()
        self._progress.close(proof.lines[-1])
        if self._reports:  # at the step that the epoch has reached
            self._reports.close(current, proof)
        self._proved += 1
        try:
            enforce(proof, self._proved == 1)
        except Unproven as sentence:
            raise Unproven(f"{sentence}{'' if current.complete else current.left}") from None


def _check_is_batch(call: str, batch: object) -> None:
    if not isinstance(batch, Batch):
        raise Refused(
            f"{call} takes a Batch, as account.epoch(phase, None, loader) yields it, not a {type(batch).__name__}: "
            "pass one, or leave the argument out"
        )
