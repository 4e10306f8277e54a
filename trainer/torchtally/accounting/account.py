"""Accounts for the samples of a user's own loop: docs/guides/own-loop.md shows how.

A batch counts as consumed when the loop asks for the next one, whatever the workers have fetched by then. If a `break`
leaves an epoch, the batch in hand and all that follow are lost. The proof then fails when the phase's next epoch
begins, or at the end of the `with`.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.nn  # imported after a group it would keep the group, whose threads can abort Python at exit
from torch.distributed.distributed_c10d import PrefixStore
from torch.utils import data

from torchtally import compat, events
from torchtally.accounting import loader
from torchtally.accounting.collate import Batch
from torchtally.accounting.epochs import Epochs
from torchtally.accounting.sampler import Sampler, Steps
from torchtally.accounting.tally import Phase, Run, Tally, emit, enforce, prove
from torchtally.distributed.handshake import agree
from torchtally.environment import Process
from torchtally.errors import Ending, Refused, Unproven
from torchtally.pod import failure
from torchtally.proof import run_summary
from torchtally.proof.contract import CONTRACTS, Contract

_UNKNOWN = "unknown"  # the data's fingerprint
_handshakes = count()  # of all accounts: each handshake has its own keys in the job's store


class Account:
    """Records which samples the loops of one run consume, and proves them at the end of each epoch.

    Use it in a `with` statement, in a process group that has gloo for CPU tensors. All ranks must make the same calls
    in the same order, and complete the plan before the end of the `with`. There, an exception of torchtally becomes
    `SystemExit` with its exit code, after its message is printed.

    Args:
        task: Name of the run in its logs and proofs.
        plan: Number of epochs of each phase, such as `{"train": 10, "test": 10}`.
        seed: Seed of the order of samples, from 0.
    """

    def __init__(self, *, task: str, plan: Mapping[str, int], seed: int = 0):
        self._task, self._plan, self._seed = task, dict(plan), seed
        self._shards: dict[str, Sampler] = {}  # by phase
        self._data: dict[str, str] = {}  # fingerprints, by phase
        self._open: dict[str, tuple[Tally, int]] = {}  # by phase: the epoch in progress, and its number of steps so far
        self._proved: dict[tuple[str, int], dict[str, Any]] = {}  # (phase, epoch) -> the line of all ranks together
        self._driven: list[Epochs] = []
        self._stepped = False

    @property
    def rank(self) -> int:
        """This process's rank, from 0."""
        return self._run.rank

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self._run.world

    def __enter__(self) -> Self:
        try:
            self._join()
        except Ending as ending:
            raise SystemExit(failure.end(ending)) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._finish()
        except Unproven as sentence:
            error = sentence
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

        Raises:
            Refused: An argument is not valid.
        """
        if phase not in self._plan:
            raise Refused(f"the phase {phase!r} must be one of the plan's: {', '.join(self._plan)}")
        if batch_size < 1:
            raise Refused(f"{phase}: batch_size={batch_size} must be a whole number from 1")
        if contract not in CONTRACTS:
            raise Refused(f"{phase}: contract={contract!r} must be one of {', '.join(CONTRACTS)}")
        self._data[phase] = fingerprint or _UNKNOWN
        self._shards[phase] = Sampler(
            n,
            batch_size=batch_size,
            seed=self._seed,
            shuffle=shuffle,
            contract=contract,
            rank=self.rank,
            world=self.world,
        )
        return self._shards[phase]

    def loader(
        self,
        phase: str,
        dataset: Any,
        *,
        batch_size: int,
        shuffle: bool = True,
        contract: Contract = "exact",
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
            options: Other arguments of the DataLoader, such as `num_workers` and `collate_fn`.

        Raises:
            Refused: An argument is not valid, or the dataset lacks a method.
        """
        stream = isinstance(dataset, data.IterableDataset)
        if not hasattr(dataset, "__len__") or (stream and not hasattr(dataset, "at_indices")):
            raise Refused(
                f"{phase}: a {type(dataset).__name__} needs __len__{' and at_indices(indices)' if stream else ''}"
            )
        sampler = self.sampler(
            phase,
            len(dataset),
            batch_size=batch_size,
            shuffle=shuffle,
            contract=contract,
            fingerprint=getattr(dataset, "fingerprint", None),
        )
        return loader.Loader(dataset, sampler, **options)

    def epoch(self, phase: str, epoch: int, batches: Iterable[Any]) -> Iterator[Batch]:
        """Yield the batches of one epoch, and prove at its end that all ranks consumed the right samples.

        A batch counts as consumed when the loop asks for the next one.

        Args:
            phase: A phase with a loader or a sampler.
            epoch: Number of the epoch, from 1.
            batches: The phase's loader, or a DataLoader of your own with the phase's sampler.

        Raises:
            Unproven: Samples were lost or doubled. All ranks raise it.
            Refused: The epoch is not in the plan, the ranks contradict each other, or `batches` is not valid.
        """
        self._settle(phase)
        tally = self._begin(phase, epoch, batches)
        sampler, steps = self._shards[phase], len(Steps(self._shards[phase]))
        sampler.set_epoch(epoch)
        if isinstance(batches, data.DataLoader):
            # iter() draws the workers' seed: not from the generator that the training uses.
            batches.generator = torch.Generator().manual_seed(_seed_of(sampler, epoch))
        self._open[phase] = tally, 0
        ours, step = isinstance(batches, loader.Loader), 0
        total, together = sampler.total, sampler.batch  # computed at each request
        for step, taken in enumerate(batches, start=1):
            if step > steps:
                where = _where(phase, epoch, step, steps)
                raise Refused(f"{where}: the loader has more batches; its batch_size must be the sampler's")
            batch = taken if ours else loader.checked(taken, batches, _where(phase, epoch, step, steps))
            yield Batch(batch.indices, batch.data, min(together, total - (step - 1) * together))
            tally.record(batch.indices)
            self._open[phase] = tally, step
            if not self._stepped:
                self._stepped = True
                if self.rank == 0:
                    events.emit(events.Step(epoch=epoch), self._run.source)
        if step < steps:
            raise Unproven(f"{phase} epoch {epoch} is not proved: the loader ended after {step} of {steps} steps")
        self._prove(tally)

    def batches(self, phase: str, batches: Iterable[Any]) -> Epochs:
        """Return the data of `batches` for a library that drives the loop: each `iter()` is the phase's next epoch."""
        self._driven.append(Epochs(lambda epoch: self.epoch(phase, epoch, batches), len(Steps(self._shards[phase]))))
        return self._driven[-1]

    def _join(self) -> None:
        """Find this rank's place, and agree on the run's id, which rank 0 draws."""
        if not dist.is_initialized():
            raise Refused("call torch.distributed.init_process_group before you make an Account")
        process, problem = Process.from_env(os.environ), None
        if (dist.get_rank(), dist.get_world_size()) != (process.rank, process.world):
            problem = f"RANK={process.rank} and WORLD_SIZE={process.world} must be the process group's"
        elif "cpu:gloo" not in (backend := dist.get_backend_config()):
            problem = f"the process group's backend {backend} must have cpu:gloo, which carries the tallies"
        elif self._seed < 0:
            problem = f"seed={self._seed} must be a whole number from 0"
        self._run = Run(
            run=process.run,
            attempt=process.attempt,
            pod=process.pod,
            task=self._task,
            plan=self._plan,
            rank=process.rank,
            world=process.world,
            seed=self._seed,
            data="",
        )
        facts = {"task": self._task, "plan": self._plan, "seed": self._seed, "_run": process.run}
        self._run = replace(self._run, run=self._agree(facts, problem)["_run"])
        if self.rank == 0:
            events.emit(events.Begun(task=self._task, world=self.world), self._run.source)

    def _begin(self, phase: str, epoch: int, batches: Iterable[Any]) -> Tally:
        """Return an empty tally, once all ranks agree on what belongs in it."""
        run = self._run
        if phase not in self._shards:
            raise Refused(f"the phase {phase!r} has no loader and no sampler yet")
        sampler = self._shards[phase]
        facts = {
            "phase": phase,
            "epoch": epoch,
            f"number of samples of {phase}": sampler.n,
            f"data of {phase}": self._data[phase],
            f"batch size of {phase}": sampler.batch_size,
            f"contract of {phase}": sampler.contract,
            f"order of {phase}": sampler.order,
        }
        self._agree(facts, self._problem(phase, epoch, batches))
        if self._data[phase] == _UNKNOWN and run.rank == 0 and epoch == 1:
            print(
                f"torchtally: {phase}: the dataset has no fingerprint, so the ranks compared only its length",
                flush=True,
            )
        return Tally(
            replace(run, data=self._data[phase]),
            Phase(
                name=phase,
                epoch=epoch,
                n=sampler.n,
                batch=sampler.batch,
                contract=sampler.contract,
                order=sampler.order,
            ),
        )

    def _problem(self, phase: str, epoch: int, batches: Iterable[Any]) -> str | None:
        sampler, planned = self._shards[phase], self._plan[phase]
        if not 1 <= epoch <= planned:
            return f"{phase} epoch {epoch} must be one of the plan's, 1 to {planned}"
        if (phase, epoch) in self._proved:
            return f"{phase} epoch {epoch} was made before"
        if not sampler.total:
            return f"{phase} has no sample: {sampler.n} for {sampler.world} ranks, contract {sampler.contract}"
        if not getattr(batches, "in_order", True):
            return f"{phase}: the DataLoader has in_order=False, which mixes up the steps: it must be True"
        # An empty batch is cut from another sample's batch; a stream has only the samples of its own indices.
        source = getattr(batches, "dataset", None)
        able = isinstance(source, loader.ByStep) or (isinstance(source, loader.StreamByStep) and len(sampler))
        if sampler.idle and not able:
            return (
                f"{phase} leaves this rank without a sample in the last step ({sampler.n} samples, {sampler.world} "
                "ranks), and its loader makes no empty batch: use account.loader, or contract padded or drop_last"
            )
        return None

    def _agree(self, facts: Mapping[str, Any], problem: str | None) -> Mapping[str, Any]:
        store = PrefixStore(f"torchtally/{next(_handshakes)}", compat.default_store())
        return agree(store, self.rank, self.world, self._run.pod, facts, problem)

    def _prove(self, tally: Tally, left: str = "") -> None:
        phase = tally.phase
        del self._open[phase.name]
        first = not self._proved
        proof = prove(tally)
        self._proved[phase.name, phase.epoch] = proof.lines[-1]
        try:
            enforce(proof, "enforce", first)
        except Unproven as sentence:
            raise Unproven(f"{sentence}{left}") from None

    def _settle(self, phase: str) -> None:
        """Prove an epoch that the loop left before its end, so that the line names the lost samples."""
        if phase in self._open:
            tally, step = self._open[phase]
            self._prove(tally, f": the loop left the epoch in step {step + 1} of {len(Steps(self._shards[phase]))}")

    def _finish(self) -> None:
        for each in self._driven:
            each.end()
        for phase in list(self._open):
            self._settle(phase)
        for phase, planned in self._plan.items():
            made = sum(name == phase for name, _ in self._proved)
            if made < planned:
                raise Unproven(f"the plan has {planned} epochs of {phase}, and {made} were made")
        if self.rank == 0 and self._proved:
            emit(run_summary.line(list(self._proved.values()), [(1, 0, self.world)], None, 0))
            events.emit(events.Complete(model=None, output=None), self._run.source)


def _where(phase: str, epoch: int, step: int, steps: int) -> str:
    return f"{phase} epoch {epoch}, step {step} of {steps}"


def _seed_of(sampler: Sampler, epoch: int) -> int:
    """Return the seed of a loader's workers, which differs between epochs and ranks."""
    return int(np.random.SeedSequence([sampler.seed, epoch, sampler.rank]).generate_state(1, np.uint64)[0])
