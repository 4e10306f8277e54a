"""The phases of an account: the data of each, and where its next epoch begins."""

import zlib
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch

from torchtally.accounting import randomness
from torchtally.accounting.batches import step_loader
from torchtally.accounting.data.fingerprint import UNKNOWN, fingerprint, is_unknown
from torchtally.accounting.data.mixture import Mixture
from torchtally.accounting.guards import contents
from torchtally.accounting.guards.contents import Contents
from torchtally.accounting.guards.guards import Guards
from torchtally.accounting.ledger import resume
from torchtally.accounting.ledger.drops import Drops
from torchtally.accounting.ledger.epoch_in_progress import EpochInProgress
from torchtally.accounting.ledger.open_epochs import Open
from torchtally.accounting.ledger.state import PhaseState
from torchtally.accounting.ledger.tally import Phase, Tally
from torchtally.accounting.order.drawn import AnySampler, DrawnSampler
from torchtally.accounting.order.locality import Locality, check_order
from torchtally.accounting.order.own_sampler import Source
from torchtally.accounting.order.position import Position
from torchtally.accounting.order.sampler import Sampler
from torchtally.accounting.run.attempt import Attempt
from torchtally.accounting.run.progress import Progress, no_step
from torchtally.checkpoints import conditions
from torchtally.errors import Refused, as_int, whole
from torchtally.log import log
from torchtally.proof import digest
from torchtally.proof import line as tally_line
from torchtally.proof.contract import CONTRACTS, OF_DRAWS, Contract
from torchtally.proof.digest import Digest
from torchtally.proof.shards import Shard


class Division(NamedTuple):
    """How the samples of a phase divide over steps and ranks: arguments of `Account.loader`."""

    batch_size: int | None
    global_batch_size: int | None
    shuffle: bool
    contract: Contract
    drop_last: bool
    trains: bool
    order: Locality | None


class Phases:
    """What a start of a run has declared of each phase, and its epochs in progress.

    Attributes:
        samplers: The order of each declared phase.
        training: Whether its samples are to be in the weights.
        open: The epochs in progress of each.
    """

    def __init__(self, progress: Progress, attempt: Attempt, order: Locality | None, guards: Guards, epochs: Open):
        self._progress, self._attempt, self._order, self._guards = progress, attempt, order, guards
        self.samplers: dict[str, AnySampler] = {}
        self.training: dict[str, bool] = {}
        self.open = epochs
        self._loaders: dict[str, step_loader.StepLoader] = {}
        self._read: dict[str, Any] = {}  # the data of which samples were read

    @property
    def reached(self) -> tuple[int, int, int]:
        """Epoch in progress of the first phase that trains, position in its order, and its samples in the weights."""
        if not self.training:
            raise Refused("checkpoints: save() needs the loader or the sampler of a phase: make it before")
        known, positions = self._progress.phases[self._first], self._positions(self._first)
        reached = [each.consumed for each in positions] or [0]
        return known.completed + len(reached), reached[-1], known.accounted + sum(reached)

    @property
    def steps_so_far(self) -> int:
        """Steps of that phase, over all epochs."""
        (epoch, reached, _), sampler = self.reached, self.samplers[self._first]
        return (epoch - 1) * sampler.part().steps + -(-reached // sampler.schedule.batch)

    @property
    def extent(self) -> tuple[int, int]:
        """Samples that the phases which train have to consume, and those that they have consumed."""
        self.measure()
        planned = consumed = 0
        for phase, (epochs, end) in self._progress.extents.items():
            if self.training.get(phase):
                whole = self.samplers[phase].whole
                planned += epochs * whole - (whole - end if end is not None else 0)
                consumed += self._progress.phases[phase].accounted
                consumed += sum(each.consumed for each in self._positions(phase))
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

    def beyond(self, phase: str, epoch: int) -> str | None:
        """Why an epoch is none of the plan."""
        self.measure()
        planned, given = self._progress.epochs[phase], self._progress.given[phase]
        if 1 <= epoch <= planned:
            return None
        accumulate = given["steps"]["accumulate"] if isinstance(given, dict) and "steps" in given else 1
        steps = f"Steps({given['steps']['count'] * accumulate})" if accumulate > 1 else ""
        hint = f"; a loop that accumulates over the end of an epoch plans batches, {steps}" if steps else ""
        return f"{phase} epoch {epoch} must be one of the plan's, 1 to {planned}{hint}"

    def _check_planned(self, phase: str) -> None:
        if not isinstance(phase, str) or phase not in self._progress.given:
            raise Refused(f"the phase {phase!r} must be one of the plan's: {', '.join(self._progress.given)}")

    def check_declared(self, phase: str) -> None:
        """Raise Refused unless a phase has its loader or its sampler."""
        self._check_planned(phase)
        if phase not in self.samplers:
            raise Refused(f"the phase {phase!r} has no loader and no sampler yet")

    def _positions(self, phase: str) -> list[Position]:
        """How far the orders of a phase's epochs in progress are consumed, or of those of a loaded state."""
        if epochs := self.open[phase]:
            return [each.position for each in epochs.reached]
        return [*self._progress.phases[phase].positions]

    def named(self, phase: str | None) -> str:
        """The phase, or the only one of the plan. Raises Refused."""
        if phase is None and len(self._progress.given) > 1:
            raise Refused(f"the plan has several phases: name one of {', '.join(self._progress.given)}")
        return next(iter(self._progress.given)) if phase is None else phase

    def declare(self, phase: str, n: int, division: Division, fingerprint: str | None) -> Sampler:
        """Return the sampler of a phase: `Account.sampler`. Raises Refused."""
        batch_size, global_batch_size, shuffle, contract, drop_last, trains, order = division
        self._check_planned(phase)
        check_order(order)
        if batch_size is not None and global_batch_size is not None:
            raise Refused(
                f"{phase}: it takes batch_size={batch_size!r} or global_batch_size={global_batch_size!r}, and not both"
            )
        if global_batch_size is not None:
            global_batch_size = whole(f"{phase}: global_batch_size", global_batch_size)
        else:
            batch_size = whole(f"{phase}: batch_size", batch_size)
        if contract not in CONTRACTS:
            raise Refused(f"{phase}: contract={contract!r} must be one of {', '.join(CONTRACTS)}")
        try:
            sampler = Sampler(
                n,
                batch_size=batch_size or 1,
                global_batch_size=global_batch_size,
                seed=self._attempt.run.seed,
                shuffle=shuffle,
                contract=contract,
                drop_last=drop_last,
                order=order or (self._order if shuffle else None),
                rank=self._attempt.members.rank,
                world=self._attempt.members.world,
            )
        except Refused as refused:
            raise Refused(f"{phase}: {refused}") from None
        self._add(phase, sampler, fingerprint, trains)
        return sampler

    def _draw(self, phase: str, dataset: Any, batches: Iterable[Any], division: Division) -> DrawnSampler:
        """Return the sampler of a phase whose batches the program's own sampler draws. A collective call.

        Raises Refused.
        """
        contract = division.contract
        self._check_planned(phase)
        for name in ("order", "global_batch_size"):
            if given := getattr(division, name):
                raise Refused(f"{phase}: it takes {name}={given} or a sampler, and not both")
        if contract not in OF_DRAWS:
            raise Refused(f"{phase}: contract={contract!r} of a sampler must be one of {', '.join(OF_DRAWS)}")
        if not isinstance(planned := self._progress.given[phase], int) and "every" not in planned:
            raise Refused(
                f"the plan of {phase} is in {', '.join(planned)}, and with a sampler of its own it must be in whole "
                "epochs: account.stop() ends a run within one"
            )
        if getattr(dataset, "ordered", False):
            raise Refused(f"{phase}: a {type(dataset).__name__} has an order of its own: it takes no sampler")
        seed, members = self._attempt.run.seed, self._attempt.members
        sampler = DrawnSampler(
            phase,
            Source(len(dataset), batches, randomness.mixed(seed, randomness.number_of(phase))),
            contract=contract,
            batch_size=as_int(division.batch_size),
            seed=seed,
            rank=members.rank,
            world=members.world,
            leads=members.leads,
            group=members.everyone,
        )
        self._add(phase, sampler, fingerprint(dataset), division.trains)
        sampler.draw(self._progress.phases[phase].completed + 1)
        return sampler

    def _add(self, phase: str, sampler: AnySampler, found: str | None, trains: bool) -> None:
        """Add a phase, whose data has this fingerprint. Raises Refused."""
        n, found = sampler.n, found or UNKNOWN
        if n and (problem := tally_line.problem({"n": n, "data": found})):
            raise Refused(f"{phase}: {problem}")
        known = PhaseState.beginning(n=n, contract=sampler.contract, order=sampler.order, data=found)
        self._progress.declare(phase, known)
        self.samplers[phase], self.training[phase] = sampler, trains

    def make_loader(
        self, phase: str, dataset: Any, division: Division, own: Iterable[Any] | None, options: dict[str, Any]
    ) -> step_loader.StepLoader:
        """Return the loader of a phase: `Account.loader`. Raises Refused."""
        if problem := step_loader.dataset_problem(dataset) or step_loader.options_problem(options):
            raise Refused(f"{phase}: {problem}")
        if isinstance(dataset, dict) and (names := [name for name in dataset if isinstance(name, str)]):
            raise Refused(
                f"{phase}: a {type(dataset).__name__} with the keys {', '.join(names[:8])} has no samples by their "
                "numbers: pass one of its datasets"
            )
        check_order(division.order)
        sampler: AnySampler
        if own is not None:
            sampler = self._draw(phase, dataset, own, division)
        else:
            if division.shuffle and getattr(dataset, "ordered", False):
                raise Refused(f"{phase}: a {type(dataset).__name__} has an order of its own: pass shuffle=False")
            order = division.order or (self._order if division.shuffle else None)
            offered = division._replace(order=order and order.offered(dataset))
            sampler = self.declare(phase, len(dataset), offered, fingerprint(dataset))
            sampler.shared = not division.trains  # the loss of an empty batch is no number, and training has fillers
        try:
            self._loaders[phase] = step_loader.StepLoader(dataset, sampler, **options)
        except (TypeError, ValueError) as error:  # DataLoader's own checks
            raise Refused(f"{phase}: the DataLoader refuses its arguments: {error}") from None
        self._guards.changed.note(phase, dataset)
        return self._loaders[phase]

    def measure(self) -> None:
        """Find how far the plan reaches. Raises Refused if a plan in steps has no sampler yet."""
        self._progress.measure(self.samplers)

    def steps(self, phase: str, epoch: int) -> int:
        """Return the number of steps of an epoch of the plan."""
        self.measure()
        return self.samplers[phase].part(end=self._progress.end(phase, epoch)).steps

    def skipped(self, phase: str) -> int:
        """Return the number of steps of a phase's next epoch that a loaded state has."""
        epoch = self._progress.completed(phase) + 1
        steps, sampler, (start, skip) = self.steps(phase, epoch), self.samplers[phase], self._place(phase, epoch)
        return steps - (sampler.part(start, self._progress.end(phase, epoch)).steps - skip)

    def begin(self, phase: str, epoch: int, batches: Iterable[Any]) -> list[EpochInProgress]:
        """Begin an epoch, or the rest of it, once all ranks agree on what belongs in it. A collective call.

        Returns it after those of a loaded state that are complete and not proved yet.
        """
        self.check_declared(phase)
        self.measure()
        progress, sampler = self._progress, self.samplers[phase]
        chosen, loaded = progress.phases[phase], progress.loaded
        start, skip = self._place(phase, epoch)
        if isinstance(sampler, Sampler):
            sampler.choose(epoch, start, skip, progress.end(phase, epoch))
        facts = {
            "phase": phase,
            "epoch": epoch,
            **{f"{name} of {phase}": value for name, value in chosen.identity.items()},
            f"batch size of {phase}": sampler.batch_size,
            f"global batch size of {phase}": sampler.schedule.batch,
            f"position of {phase}": start + skip * sampler.schedule.batch,
            "number of ranks that share the samples": sampler.world,
            "loaded state": loaded and (loaded.run, loaded.attempt, *loaded.reached),
        }
        problem = self._attempt.problem(loaded) or self._problem(phase, epoch, batches)
        samples = [] if problem else self._samples(phase)
        alike = [self._attempt.members.first, conditions.of_this_rank(torch.device("cpu"))]
        facts["_contents"] = zlib.crc32(repr(alike).encode()), samples
        position = self._position(phase, epoch)
        # Between two epochs, another order of the data loses nothing.
        before = chosen.contents if position and position.consumed else ()
        agreed = self._attempt.agree(facts, problem, partial(contents.differ, before=before))
        if samples:
            chosen = progress.phases[phase] = replace(chosen, contents=contents.saved(agreed["_contents"]))
        self._attempt.begin()
        if is_unknown(chosen.data) and self._attempt.prints and epoch == 1:
            of_samples = f" and the contents of {len(samples)} samples" if samples else ""
            log.info(f"{phase}: the dataset has no fingerprint, so the ranks compared only its length{of_samples}")
        waiting = self.open[phase]
        begun = [self._begun(phase, each.epoch) for each in chosen.positions[:-1] if not waiting]
        if not all(each.complete for each in begun):  # more ranks have left out samples that fewer do not
            raise Refused(
                f"{phase}: the state is within a step of two epochs, of which the contract {sampler.contract} leaves "
                f"out other samples at {sampler.world} ranks: continue with the number of ranks that has saved it"
            )
        progress.waiting[phase] = len(waiting) + len(begun)
        begun.append(self._begun(phase, epoch))
        waiting += begun
        return begun

    def _begun(self, phase: str, epoch: int) -> EpochInProgress:
        """An epoch, or the rest of it. A collective call with a sampler of the program's own."""
        progress, sampler = self._progress, self.samplers[phase]
        chosen, end = progress.phases[phase], progress.end(phase, epoch)
        position = self._position(phase, epoch)
        start, skip = self._place(phase, epoch)
        drawn = None
        if isinstance(sampler, DrawnSampler):
            drawn = sampler.draw(epoch, position)
        else:
            sampler.choose(epoch, start, skip, end)
        dataset = self._dataset(phase)
        tally = Tally(
            replace(self._attempt.run, data=chosen.data, plan=progress.epochs),
            Phase(
                name=phase,
                epoch=epoch,
                n=sampler.n,
                batch=sampler.schedule.batch,
                contract=sampler.contract,
                order=sampler.order,
                start=start,
                end=end,
                mix=dataset.mix if isinstance(dataset, Mixture) else None,
            ),
            drawn.taken(drawn.steps) if drawn else None,
        )
        before = digest.unpack(position.dropped) if position and position.dropped else Digest()
        if position and position.consumed:
            resume.restore(tally, sampler.schedule, before)
        progress.phases[phase] = chosen.shared_out(epoch, start, sampler.world)
        drops = Drops(tally.run, phase, epoch, before, leads=self._attempt.members.leads)
        return EpochInProgress(tally, sampler.schedule, drops=drops, trains=self.training[phase])

    def _dataset(self, phase: str) -> Any:
        """That of the loader of a phase, None if the program has made a loader of its own."""
        return self._loaders[phase].source if phase in self._loaders else None

    def _samples(self, phase: str) -> list[contents.Sample]:
        """A few samples of a phase's data, for the ranks that share it to compare, once."""
        dataset = self._dataset(phase)
        if dataset is None or not self._guards.has(Contents) or self._read.get(phase) is dataset:
            return []
        self._read[phase] = dataset
        return contents.read(self._loaders[phase])

    def _place(self, phase: str, epoch: int) -> tuple[int, int]:
        """From which position on the ranks share an epoch of the phase, and how many steps they skip from there."""
        if (position := self._position(phase, epoch)) is None:
            return 0, 0
        sampler = self.samplers[phase]
        if isinstance(sampler, DrawnSampler):
            return 0, sampler.made(position)
        return resume.place(position, self._shard(phase, epoch), sampler.schedule.batch)

    def _position(self, phase: str, epoch: int) -> Position | None:
        """Where a loaded state is in an epoch of the phase."""
        return next((each for each in self._progress.phases[phase].positions if each.epoch == epoch), None)

    def _shard(self, phase: str, epoch: int) -> Shard:
        """The whole of an epoch, over the ranks of today."""
        return self.samplers[phase].part(end=self._progress.end(phase, epoch)).shard

    def _problem(self, phase: str, epoch: int, batches: Iterable[Any]) -> str | None:
        """Why an epoch cannot begin with these batches."""
        sampler, completed = self.samplers[phase], self._progress.completed(phase)
        if beyond := self.beyond(phase, epoch):
            return beyond
        if epoch <= completed:
            return f"{phase} epoch {epoch} was made before: pass the next number, or None"
        if epoch != completed + 1:
            return f"{phase} epoch {epoch} must be the next one, {completed + 1}"
        positions, name = self._progress.phases[phase].positions, f"{phase} epoch {epoch}"
        if changed := self._guards.closes(phase, name):
            return changed
        shards = ((each, self._shard(phase, each.epoch)) for each in positions)
        problems = (resume.problem(phase, each, shard, sampler.schedule.batch) for each, shard in shards)
        if problem := next(filter(None, problems), None):
            return problem
        # drop_last may leave nothing to more ranks.
        if isinstance(sampler, Sampler) and not sampler.schedule.steps and not sampler.schedule.shard.start:
            return no_step(phase, sampler)
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
        if type(getattr(batches, "batch_sampler", None)).__name__ == "BatchSamplerShard":  # of Accelerate
            return (
                f"{phase}: Accelerate's prepare() has divided the batches of this rank over the ranks once more: do "
                "not prepare the DataLoader of an account"
            )
        if sampler.idle and not getattr(batches, "makes_empty_batches", False):
            return (
                f"{phase} leaves this rank without a sample in the last step ({sampler.n} samples, {sampler.world} "
                "ranks), and its loader makes no empty batch: use account.loader, or contract padded or drop_last"
            )
        return None
