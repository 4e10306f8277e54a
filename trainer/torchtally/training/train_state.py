"""The state of a training: saved to a checkpoint, and restored from one at any world size."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from torchtally import events, exchange
from torchtally.accounting.ledger.epoch_in_progress import EpochInProgress
from torchtally.accounting.ledger.state import shared_out
from torchtally.accounting.ledger.tally import Phase, Run, Tally
from torchtally.accounting.order.schedule import Schedule
from torchtally.accounting.proofs import kept_lines
from torchtally.checkpoints import conditions
from torchtally.checkpoints.objects import Objects
from torchtally.distributed import running_stats
from torchtally.errors import Refused
from torchtally.proof.digest import Digest
from torchtally.proof.worlds import World
from torchtally.training.checkpoint_file import State


@dataclass(frozen=True)
class Epoch:
    """The results of one epoch over all ranks."""

    epoch: int
    loss: float  # mean over the training samples
    test_loss: float  # mean over the test samples
    correct: int  # of the test samples
    tested: int
    samples_per_second: float  # in training, since the last start

    @property
    def event(self) -> events.Epoch:
        return events.Epoch(
            epoch=self.epoch,
            loss=self.loss,
            test_loss=self.test_loss,
            test_accuracy=self.correct / self.tested,
            tested=self.tested,
            samples_per_second=self.samples_per_second,
        )


@dataclass
class TrainState:
    """A training in progress: what checkpoints need of an account.

    Attributes:
        run: The start of the run that this process makes: its own, or that of a loaded state.
        loss: This rank's sum over the epoch so far.
        facts: What identifies the training.
        place: Where its checkpoints are, and the option that says so.
        grows: Name of the fact that may be greater than in a checkpoint.
        loaded: A state to go on from.
        epoch: Number of the epoch in progress.
        current: That epoch, once it has begun.
        lines: Those of all ranks together, for each phase that is proved.
        epochs: Results.
        discarded: Samples known to have been consumed by steps that no checkpoint kept.
    """

    run: Run
    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Tensor
    facts: Mapping[str, Any] = field(default_factory=dict)
    place: tuple[str, str] = ("", "")
    grows: str | None = None
    loaded: State | None = None
    epoch: int = 1
    current: EpochInProgress | None = None
    lines: list[dict[str, Any]] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)
    worlds: list[World] = field(default_factory=list)
    discarded: int = 0

    def __post_init__(self) -> None:
        self.worlds = self.worlds or [(1, 0, self.run.world)]

    @property
    def task(self) -> str:
        """Name of the run."""
        return self.run.task

    @property
    def source(self) -> events.Source:
        """This process, as its events name it."""
        return self.run.source

    @property
    def reached(self) -> tuple[int, int, int]:
        """Epoch in progress, position in its order, and samples in the weights over all epochs."""
        return self.epoch, self.position, self.consumed

    @property
    def best(self) -> Epoch | None:
        """The epoch with the most correct predictions."""
        return max(self.epochs, key=lambda each: each.correct, default=None)

    def save_problem(self, objects: Objects) -> None:
        """What is wrong with a checkpoint of these objects: nothing."""

    def begin_anew(self) -> None:
        """Take note that there is no checkpoint."""

    @property
    def consumed(self) -> int:
        """Training samples in the weights, over all epochs."""
        before: int = sum(line["consumed"] for line in self.lines if line["phase"] == "train")
        return before + self.position

    @property
    def position(self) -> int:
        """Samples of the epoch's order that all ranks together have consumed."""
        return min(self.current.reached, self.current.tally.phase.n) if self.current else 0

    @property
    def done(self) -> float:
        """The completed share of the training, from 0 to 1."""
        epochs = self.epoch - 1 + (self.position / self.current.tally.phase.n if self.current else 0)
        return epochs / self.run.plan["train"]

    def begin(self, phase: Phase, skip: int = 0) -> EpochInProgress:
        """Return the epoch in progress, or a new one."""
        if self.current is None:
            tally = Tally(self.run, phase)
            self.current = EpochInProgress(tally, Schedule(tally.shard, phase.batch, skip))
        return self.current

    def end_epoch(self, done: Epoch) -> None:
        """Record the results of the epoch and advance to the next."""
        self.epochs.append(done)
        self.epoch, self.current = self.epoch + 1, None
        self.loss.zero_()

    def position_dict(self) -> State:
        """Return how far the training is, as values of JSON, complete on rank 0 only. A collective call over gloo."""
        running_stats.check(running_stats.of(self.model))
        tally = self.current.tally if self.current else None
        own = {
            "digest": list(tally.digest.words) if tally else None,
            "count": tally.count if tally else 0,
            "outside": tally.outside if tally else [],
            "loss": self.loss.item(),
        }
        ranks = exchange.gather(own)
        return {
            "facts": dict(self.facts),
            "run": self.run.run,
            "attempt": self.run.attempt,
            "epoch": self.epoch,
            "start": tally.phase.start if tally else 0,
            "position": self.position,
            "consumed": self.consumed,
            "steps": self.current.counted if self.current else 0,
            "ranks": ranks,
            "carried": list(tally.carried.words) if tally else None,
            "worlds": [list(each) for each in self.worlds],
            "discarded": self.discarded,
            "history": json.dumps(
                {
                    "lines": self.lines,
                    "epochs": [asdict(each) for each in self.epochs],
                    "faults": kept_lines.faults(self.run.run),
                }
            ),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the run of a state, which `restore` goes on from. Raises Refused if it is of another training."""
        folder, option = self.place
        if refused := conditions.refusal(f"in {folder}", state["facts"], self.facts, option, self.grows):
            raise Refused(refused)
        self.loaded = dict(state)
        self.run = replace(self.run, run=state["run"], attempt=state["attempt"] + 1)

    def restore(self, state: State, phase: Phase) -> None:
        """Go on from `state`; `phase` is that of its epoch, from position 0.

        If the number of ranks is unchanged, each continues its own tally. Otherwise the remaining samples are divided
        again, and the digest of the consumed ones is carried as a sum.
        """
        history = json.loads(state["history"])
        self.lines = history["lines"]
        if self.run.rank == 0:
            kept_lines.add(history.get("faults", []))  # an earlier release left them out
        self.epochs = [Epoch(**each) for each in history["epochs"]]
        self.epoch, ranks = state["epoch"], state["ranks"]
        same = len(ranks) == self.run.world
        start, steps = (state["start"], state["steps"]) if same else (state["position"], 0)
        worlds = ((epoch, position, world) for epoch, position, world in state["worlds"])
        self.worlds = [*shared_out(tuple(worlds), self.epoch, start, self.run.world)]
        if state["carried"] is None:
            return
        carried = Digest(tuple(state["carried"])) if self.run.rank == 0 else Digest()
        if same:
            own = ranks[self.run.rank]
            consumed, count, outside = Digest(tuple(own["digest"])), own["count"], own["outside"]
            self.loss += own["loss"]
        else:
            if self.run.rank == 0:
                carried = sum((Digest(tuple(each["digest"])) for each in ranks), carried)
            consumed, count, outside = Digest(), 0, []
            self.loss += sum(each["loss"] for each in ranks) if self.run.rank == 0 else 0.0
        self.begin(replace(phase, start=start), steps).tally.restore(carried, consumed, count, outside)
