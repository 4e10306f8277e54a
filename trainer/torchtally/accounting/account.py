"""For a loop of one's own: what it takes from its DataLoader is counted, and proved at the end of each epoch.

    with Account(task="mine", plan={"train": 10}, seed=0) as account:
        loader = account.loader("train", dataset, batch_size=32, num_workers=4)
        for epoch in range(1, 11):
            for batch in account.epoch("train", epoch, loader):
                inputs, labels = batch.data
                loss = cross_entropy(model(inputs), labels, reduction="sum") * account.world / batch.rows
                ...

A batch counts as consumed when the loop comes back for the next one, whatever workers have fetched by then. So an epoch
that is left by `break` has lost the batch in hand and all that follow: the proof fails when the phase's next epoch
begins, or at the end of the `with`. The `with` ends the program with a sentence and the exit codes of errors.py.

A library that drives the loop itself is given `account.batches("train", loader)`. A script with a DistributedSampler
takes three lines: see tallied_sampler.py.

A collate_fn that leaves samples out, or packs them, says which they are: it returns Batch(indices, data), for a dataset
whose samples are (index, sample). With such a dataset any other DataLoader will do, too, if its batches are pairs of
indices and data: DataLoader(pairs, batch_size=32, sampler=account.sampler("train", n, batch_size=32)).

An IterableDataset needs, beside `__iter__`, a `__len__` and `select(indices)`, which yields (index, sample) for each of
the indices, in order. They are those of this rank and this worker. A file that is read from beginning to end:

    class Lines(IterableDataset):
        def select(self, indices):          # ascending with shuffle=False
            wanted = next(indices, None)
            for index, line in enumerate(open(self.path)):
                if index == wanted:
                    yield index, line
                    wanted = next(indices, None)
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
import torch.distributed.nn  # made before a group: else it keeps the group, whose threads may abort Python's end
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store
from torch.utils import data

from torchtally import events
from torchtally.accounting import loader
from torchtally.accounting.loader import Batch, Epochs, Sampler, Steps
from torchtally.accounting.tally import Phase, Run, Tally, emit, enforce, prove
from torchtally.distributed.handshake import agree
from torchtally.environment import Process
from torchtally.errors import Ending, Refused, Unproven
from torchtally.pod import failure
from torchtally.proof import run_summary
from torchtally.proof.contract import CONTRACTS, Contract

_UNKNOWN = "unknown"  # the data's fingerprint
_agreements = count()  # of all accounts: each has a place of its own in the job's store


class Account:
    """What the loops of one run have consumed. Needs a process group with gloo for CPU tensors.

    `plan`: the epochs of each phase that the run will make. All ranks must make the same calls in the same order.
    """

    def __init__(self, *, task: str, plan: Mapping[str, int], seed: int = 0):
        self._task, self._plan, self._seed = task, dict(plan), seed
        self._shards: dict[str, Sampler] = {}  # by phase
        self._data: dict[str, str] = {}  # fingerprints, by phase
        self._open: dict[str, tuple[Tally, int]] = {}  # by phase: its epoch so far, and the steps made in it
        self._proved: dict[tuple[str, int], dict[str, Any]] = {}  # what all ranks together have consumed
        self._driven: list[Epochs] = []
        self._stepped = False

    @property
    def rank(self) -> int:
        return self._run.rank

    @property
    def world(self) -> int:
        return self._run.world

    def __enter__(self) -> Self:
        try:
            self._meet()
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
        """This rank's part of n samples, `batch_size` a step, for a DataLoader of one's own."""
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
        """A DataLoader whose batches carry their indices, where need be empty ones; `options` are DataLoader's.

        If the dataset has a `fingerprint` (text), it must be the same on all ranks, else only their lengths.
        """
        stream = isinstance(dataset, data.IterableDataset)
        if not hasattr(dataset, "__len__") or (stream and not hasattr(dataset, "select")):
            raise Refused(
                f"{phase}: a {type(dataset).__name__} needs __len__{' and select(indices)' if stream else ''}"
            )
        sampler = self.sampler(
            phase,
            len(dataset),
            batch_size=batch_size,
            shuffle=shuffle,
            contract=contract,
            fingerprint=getattr(dataset, "fingerprint", None),
        )
        return loader.loader(dataset, sampler, **options)

    def epoch(self, phase: str, epoch: int, batches: Iterable[Any]) -> Iterator[Batch]:
        """Hand out the batches of one epoch, and prove when they have ended that they were what they should be.

        Raises Unproven on every rank if they were not, and Refused, before the first one, for what cannot be.
        """
        self._settle(phase)
        tally = self._begin(phase, epoch, batches)
        sampler, steps = self._shards[phase], len(Steps(self._shards[phase]))
        sampler.set_epoch(epoch)
        if isinstance(batches, data.DataLoader):
            # iter() draws a seed for the workers: not from the random numbers of the training.
            batches.generator = torch.Generator().manual_seed(_seed_of(sampler, epoch))
        self._open[phase] = tally, 0
        step = 0
        for step, taken in enumerate(batches, start=1):
            where = f"{phase} epoch {epoch}, step {step} of {steps}"
            if step > steps:
                raise Refused(f"{where}: the loader has more batches than that; is its batch_size the sampler's?")
            batch = loader.checked(taken, where)
            yield batch._replace(rows=min(sampler.batch, sampler.total - (step - 1) * sampler.batch))
            tally.record(batch.indices)
            self._open[phase] = tally, step
            if not self._stepped:
                self._stepped = True
                if self.rank == 0:
                    events.emit(events.Step(epoch=epoch), self._run.source)
        if step < steps:
            raise Unproven(f"{phase} epoch {epoch} is not proved: the loader has ended after {step} of {steps} steps")
        self._prove(tally)

    def batches(self, phase: str, batches: Iterable[Any]) -> Epochs:
        """The data of `batches` for a library that drives the loop itself: each iter() is the phase's next epoch."""
        self._driven.append(Epochs(lambda epoch: self.epoch(phase, epoch, batches), len(Steps(self._shards[phase]))))
        return self._driven[-1]

    def _meet(self) -> None:
        """Find this rank's place, and the run's id, which is rank 0's."""
        if not dist.is_initialized():
            raise Refused("an Account needs torch.distributed.init_process_group before it")
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
        """An empty tally, after all ranks have agreed on what is to be in it."""
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
            print(f"torchtally: {phase}: the dataset has no fingerprint, so its length alone was compared", flush=True)
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
            return f"{phase} epoch {epoch} has been made already"
        if not sampler.total:
            return f"{phase} has no sample: {sampler.n} for {sampler.world} ranks, contract {sampler.contract}"
        if not getattr(batches, "in_order", True):
            return f"{phase}: a DataLoader with in_order=False mixes up the steps"
        # An empty batch is made of another sample's; a stream has only those that it was asked for.
        source = getattr(batches, "dataset", None)
        able = isinstance(source, loader.ByStep) or (isinstance(source, loader.StreamByStep) and len(sampler))
        if sampler.idle and not able:
            return (
                f"{phase} leaves this rank without a sample in the last step ({sampler.n} samples, {sampler.world} "
                "ranks), and its loader makes no empty batch: use account.loader, or contract padded or drop_last"
            )
        return None

    def _agree(self, facts: Mapping[str, Any], problem: str | None) -> Mapping[str, Any]:
        store = PrefixStore(f"torchtally/{next(_agreements)}", _get_default_store())
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
        """Prove an epoch that the loop has left before its end, which shows what is missing."""
        if phase in self._open:
            tally, step = self._open[phase]
            self._prove(tally, f": the loop left it in step {step + 1} of {len(Steps(self._shards[phase]))}")

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


def _seed_of(sampler: Sampler, epoch: int) -> int:
    """For the seeds of a loader's workers: another one for each epoch and rank."""
    return int(np.random.SeedSequence([sampler.seed, epoch, sampler.rank]).generate_state(1, np.uint64)[0])
