"""The phases of an account: the data of each, and where its next epoch begins."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch.utils import data

from torchtally.accounting.batches import step_loader
from torchtally.accounting.data.fingerprint import UNKNOWN, fingerprint, is_unknown
from torchtally.accounting.data.mixture import Mixture
from torchtally.accounting.guards import contents
from torchtally.accounting.guards.contents import Contents
from torchtally.accounting.guards.guards import Guards
from torchtally.accounting.ledger import resume
from torchtally.accounting.ledger.drops import Drops
from torchtally.accounting.ledger.epoch_in_progress import EpochInProgress
from torchtally.accounting.ledger.state import PhaseState
from torchtally.accounting.ledger.tally import Phase, Tally
from torchtally.accounting.order.locality import Locality, check_order
from torchtally.accounting.order.sampler import Sampler
from torchtally.accounting.run.attempt import Attempt
from torchtally.accounting.run.progress import Progress
from torchtally.checkpoints import conditions
from torchtally.errors import Refused
from torchtally.log import log
from torchtally.proof import digest
from torchtally.proof import line as tally_line
from torchtally.proof.contract import CONTRACTS, Contract
from torchtally.proof.digest import Digest


class Phases:
    """What a start of a run has declared of each phase, and its epochs in progress.

    Attributes:
        samplers: The order of each declared phase.
        trains: Whether commits count its samples.
        open: Its epoch in progress, if there is one.
    """

    def __init__(self, progress: Progress, attempt: Attempt, order: Locality | None, guards: Guards):
        self._progress, self._attempt, self._order, self._guards = progress, attempt, order, guards
        self.samplers: dict[str, Sampler] = {}
        self.training: dict[str, bool] = {}
        self.open: dict[str, EpochInProgress] = {}
        self._loaders: dict[str, data.DataLoader[Any]] = {}
        self._data: dict[str, Any] = {}  # of those loaders
        self._read: dict[str, Any] = {}  # the data of which samples were read

    @property
    def reached(self) -> tuple[int, int, int]:
        """Epoch in progress of the first phase that trains, position in its order, and its samples in the weights."""
        if not self.training:
            raise Refused("checkpoints: save() needs the loader or the sampler of a phase: make it before")
        known = self._progress.phases[self._first]
        reached = self._position(self._first)
        return known.completed + 1, reached, known.accounted + reached

    @property
    def steps_so_far(self) -> int:
        """Steps of that phase, over all epochs."""
        epoch, reached, _ = self.reached
        return (epoch - 1) * self.whole_steps(self._first) + -(-reached // self.samplers[self._first].batch)

    @property
    def extent(self) -> tuple[int, int]:
        """Samples that the phases which train have to consume, and those that they have consumed."""
        self.measure()
        planned = consumed = 0
        for phase, (epochs, end) in self._progress.extents.items():
            if self.training.get(phase):
                whole = replace(self.samplers[phase].shard, start=0, end=None).total
                planned += epochs * whole - (whole - end if end is not None else 0)
                consumed += self._progress.phases[phase].accounted + self._position(phase)
        return planned, consumed

    @property
    def share(self) -> float:
        """The completed share of the training, from 0 to 1."""
        planned, consumed = self.extent
        return min(1.0, consumed / planned) if planned else 0.0

    @property
    def fingerprint(self) -> str:
        """Of the data of the first phase that trains."""
        return self._progress.phases[self._first].data

    @property
    def _first(self) -> str:
        """The first phase that trains, or else the first of all."""
        return next((name for name, trains in self.training.items() if trains), next(iter(self.training)))

    def _check_planned(self, phase: str) -> None:
        if not isinstance(phase, str) or phase not in self._progress.given:
            raise Refused(f"the phase {phase!r} must be one of the plan's: {', '.join(self._progress.given)}")

    def _check_declared(self, phase: str) -> None:
        self._check_planned(phase)
        if phase not in self.samplers:
            raise Refused(f"the phase {phase!r} has no loader and no sampler yet")

    def _position(self, phase: str) -> int:
        """The position in the order of a phase's epoch in progress."""
        known = self.open[phase].position if phase in self.open else self._progress.phases[phase].position
        return known.consumed if known else 0

    def named(self, phase: str | None) -> str:
        """The phase, or the only one of the plan. Raises Refused."""
        if phase is None and len(self._progress.given) > 1:
            raise Refused(f"the plan has several phases: name one of {', '.join(self._progress.given)}")
        return next(iter(self._progress.given)) if phase is None else phase

    def declare(
        self,
        phase: str,
        n: int,
        *,
        batch_size: int,
        shuffle: bool,
        contract: Contract,
        fingerprint: str | None,
        trains: bool,
        order: Locality | None,
    ) -> Sampler:
        """Return the sampler of a phase: `Account.sampler`. Raises Refused."""
        self._check_planned(phase)
        check_order(order)
        if type(batch_size) is not int or batch_size < 1:
            raise Refused(f"{phase}: batch_size={batch_size!r} must be a whole number from 1")
        if contract not in CONTRACTS:
            raise Refused(f"{phase}: contract={contract!r} must be one of {', '.join(CONTRACTS)}")
        if n and (problem := tally_line.problem({"n": n, "data": fingerprint or UNKNOWN})):
            raise Refused(f"{phase}: {problem}")
        try:
            sampler = Sampler(
                n,
                batch_size=batch_size,
                seed=self._attempt.run.seed,
                shuffle=shuffle,
                contract=contract,
                order=order or (self._order if shuffle else None),
                rank=self._attempt.members.rank,
                world=self._attempt.members.world,
            )
        except Refused as refused:
            raise Refused(f"{phase}: {refused}") from None
        known = PhaseState.beginning(n=n, contract=contract, order=sampler.order, data=fingerprint or UNKNOWN)
        self._progress.declare(phase, known)
        self.samplers[phase], self.training[phase] = sampler, trains
        return sampler

    def make_loader(
        self,
        phase: str,
        dataset: Any,
        *,
        batch_size: int,
        shuffle: bool,
        contract: Contract,
        trains: bool,
        order: Locality | None,
        **options: Any,
    ) -> data.DataLoader[Any]:
        """Return the loader of a phase: `Account.loader`. Raises Refused."""
        if problem := step_loader.dataset_problem(dataset) or step_loader.options_problem(options):
            raise Refused(f"{phase}: {problem}")
        if isinstance(dataset, dict) and (names := [name for name in dataset if isinstance(name, str)]):
            raise Refused(
                f"{phase}: a {type(dataset).__name__} with the keys {', '.join(names[:8])} has no samples by their "
                "numbers: pass one of its datasets"
            )
        if shuffle and getattr(dataset, "ordered", False):
            raise Refused(f"{phase}: a {type(dataset).__name__} has an order of its own: pass shuffle=False")
        check_order(order)
        order = order or (self._order if shuffle else None)
        sampler = self.declare(
            phase,
            len(dataset),
            batch_size=batch_size,
            shuffle=shuffle,
            contract=contract,
            fingerprint=fingerprint(dataset),
            trains=trains,
            order=order and order.offered(dataset),
        )
        try:
            self._loaders[phase] = step_loader.StepLoader(dataset, sampler, **options)
        except (TypeError, ValueError) as error:  # DataLoader's own checks
            raise Refused(f"{phase}: the DataLoader refuses its arguments: {error}") from None
        self._data[phase] = dataset
        self._guards.changed.note(phase, dataset)
        return self._loaders[phase]

    def measure(self) -> None:
        """Find how far the plan reaches. Raises Refused if a plan in steps has no sampler yet."""
        self._progress.measure(self.samplers)

    def whole_steps(self, phase: str) -> int:
        """Return the number of steps of a whole epoch, whatever part of one the sampler has chosen. Raises Refused."""
        self._check_declared(phase)
        sampler = self.samplers[phase]
        return replace(sampler.shard, start=0, end=None).steps(sampler.batch)

    def steps(self, phase: str, epoch: int) -> int:
        """Return the number of steps of an epoch of the plan."""
        self.measure()
        sampler = self.samplers[phase]
        return replace(sampler.shard, start=0, end=self._progress.end(phase, epoch)).steps(sampler.batch)

    def skipped(self, phase: str) -> int:
        """Return the number of steps of a phase's next epoch that a loaded state has."""
        epoch = self._progress.completed(phase) + 1
        steps, sampler, (start, skip) = self.steps(phase, epoch), self.samplers[phase], self._place(phase)
        shard = replace(sampler.shard, start=start, end=self._progress.end(phase, epoch))
        return steps - (shard.steps(sampler.batch) - skip)

    def begin(self, phase: str, epoch: int, batches: Iterable[Any]) -> EpochInProgress:
        """Begin an epoch, or the rest of it, once all ranks agree on what belongs in it. A collective call."""
        self._check_declared(phase)
        self.measure()
        progress, sampler = self._progress, self.samplers[phase]
        chosen, end = progress.phases[phase], progress.end(phase, epoch)
        position, loaded = chosen.position, progress.loaded
        start, skip = self._place(phase)
        sampler.choose(epoch, start, skip, end)
        facts = {
            "phase": phase,
            "epoch": epoch,
            **{f"{name} of {phase}": value for name, value in chosen.identity.items()},
            f"batch size of {phase}": sampler.batch_size,
            f"position of {phase}": start + skip * sampler.batch,
            "number of ranks that share the samples": sampler.world,
            "loaded state": loaded and (loaded.run, loaded.attempt, *loaded.reached),
        }
        problem = self._attempt.problem(loaded) or self._problem(phase, epoch, batches)
        samples = [] if problem else self._samples(phase)
        alike = [self._attempt.members.first, conditions.of_this_rank(torch.device("cpu"))]
        facts["_contents"] = repr(alike), samples
        self._attempt.agree(facts, problem, contents.differ)
        self._attempt.begin()
        if is_unknown(chosen.data) and self._attempt.prints and epoch == 1:
            of_samples = f" and the contents of {len(samples)} samples" if samples else ""
            log.info(f"{phase}: the dataset has no fingerprint, so the ranks compared only its length{of_samples}")
        dataset = self._data.get(phase)
        tally = Tally(
            replace(self._attempt.run, data=chosen.data, plan=progress.epochs),
            Phase(
                name=phase,
                epoch=epoch,
                n=sampler.n,
                batch=sampler.batch,
                contract=sampler.contract,
                order=sampler.order,
                start=start,
                end=end,
                mix=dataset.mix if isinstance(dataset, Mixture) else None,
            ),
        )
        before = digest.unpack(position.dropped) if position and position.dropped else Digest()
        if start or skip:
            resume.restore(tally, skip, before)
        progress.phases[phase] = chosen.shared_out(start, sampler.world)
        commits = position.commits if position else 0
        drops = Drops(tally.run, phase, epoch, before, leads=self._attempt.members.leads)
        self.open[phase] = EpochInProgress(
            tally, sampler.schedule, drops=drops, trains=self.training[phase], commits=commits
        )
        return self.open[phase]

    def _samples(self, phase: str) -> list[contents.Sample]:
        """A few samples of a phase's data, for the ranks that share it to compare, once."""
        dataset = self._data.get(phase)
        if (
            dataset is None
            or not self._guards.has(Contents)
            or self._read.get(phase) is dataset
            or self._attempt.members.world == 1
        ):
            return []
        self._read[phase] = dataset
        return contents.read(self._loaders[phase])

    def _place(self, phase: str) -> tuple[int, int]:
        """From which position on the ranks share the phase's next epoch, and how many steps they skip from there."""
        position, sampler = self._progress.phases[phase].position, self.samplers[phase]
        return resume.place(position, sampler.world, sampler.batch) if position else (0, 0)

    def _problem(self, phase: str, epoch: int, batches: Iterable[Any]) -> str | None:
        """Why an epoch cannot begin with these batches."""
        sampler, planned = self.samplers[phase], self._progress.epochs[phase]
        completed = self._progress.completed(phase)
        if not 1 <= epoch <= planned:
            return f"{phase} epoch {epoch} must be one of the plan's, 1 to {planned}"
        if epoch <= completed:
            return f"{phase} epoch {epoch} was made before"
        if epoch != completed + 1:
            return f"{phase} epoch {epoch} must be the next one, {completed + 1}"
        if changed := self._guards.closes(phase, f"{phase} epoch {epoch}"):
            return changed
        if not sampler.total and not sampler.shard.start:  # drop_last may leave nothing to more ranks
            return f"{phase} has no sample: {sampler.n} for {sampler.world} ranks, contract {sampler.contract}"
        if not getattr(batches, "in_order", True):
            return f"{phase}: the DataLoader has in_order=False, which mixes up the steps: it must be True"
        for name, other in self.samplers.items():
            if name != phase and (batches is self._loaders.get(name) or getattr(batches, "sampler", None) is other):
                return f"{phase}: the batches are those of the phase {name}: pass the loader of {phase}"
        own = self._loaders.get(phase)
        if own is not None and own is not batches and getattr(batches, "dataset", None) is own.dataset:
            return (
                f"{phase}: the DataLoader must be what account.loader returned, and not a copy: do not prepare it, and "
                "do not skip batches of it"
            )
        # An empty batch is cut from another sample's batch; a stream has only the samples of its own indices.
        source = getattr(batches, "dataset", None)
        able = isinstance(source, step_loader.ByStep) or (isinstance(source, step_loader.StreamByStep) and len(sampler))
        if sampler.idle and not able:
            return (
                f"{phase} leaves this rank without a sample in the last step ({sampler.n} samples, {sampler.world} "
                "ranks), and its loader makes no empty batch: use account.loader, or contract padded or drop_last"
            )
        return None
