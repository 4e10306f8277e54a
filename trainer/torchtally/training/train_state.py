"""The state of a training: saved to a checkpoint, and restored from one at any world size."""

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from torchtally import events
from torchtally.accounting.tally import Phase, Run, Tally
from torchtally.distributed import running_stats
from torchtally.proof.digest import Digest
from torchtally.proof.run_summary import World
from torchtally.training.checkpoint_file import State, file_name


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
    """A training in progress: `steps` steps of `epoch` are done since position `start` of its order."""

    run: Run
    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Tensor  # this rank's sum over the epoch so far
    epoch: int = 1
    start: int = 0
    steps: int = 0
    tally: Tally | None = None  # of the epoch in progress
    lines: list[dict[str, Any]] = field(default_factory=list)  # of all ranks together, for each phase that is proved
    epochs: list[Epoch] = field(default_factory=list)
    worlds: list[World] = field(default_factory=list)
    discarded: int = 0  # samples known to have been consumed by steps that no checkpoint kept

    def __post_init__(self) -> None:
        self.worlds = self.worlds or [(1, 0, self.run.world)]

    @property
    def consumed(self) -> int:
        """Training samples in the weights, over all epochs."""
        before: int = sum(line["consumed"] for line in self.lines if line["phase"] == "train")
        return before + self.position

    @property
    def position(self) -> int:
        """Samples of the epoch's order that all ranks together have consumed."""
        if self.tally is None:
            return 0
        return min(self.start + self.steps * self.tally.phase.batch, self.tally.phase.n)

    @property
    def done(self) -> float:
        """The completed share of the training, from 0 to 1."""
        epochs = self.epoch - 1 + (self.position / self.tally.phase.n if self.tally else 0)
        return epochs / self.run.plan["train"]

    def begin(self, phase: Phase) -> Tally:
        """Return the tally of the epoch in progress, or a new one."""
        if self.tally is None:
            self.tally = Tally(self.run, phase)
        return self.tally

    def end_epoch(self, done: Epoch) -> None:
        """Record the results of the epoch and advance to the next."""
        self.epochs.append(done)
        self.epoch, self.start, self.steps, self.tally = self.epoch + 1, 0, 0, None
        self.loss.zero_()

    def state(self) -> State:
        """Return the contents of a checkpoint, complete on rank 0 only. A collective call over gloo."""
        running_stats.check(running_stats.of(self.model))
        tally = self.tally
        own = {
            "digest": list(tally.digest.words) if tally else None,
            "count": tally.count if tally else 0,
            "outside": tally.outside if tally else [],
            "loss": self.loss.item(),
        }
        ranks: list[Any] | None = [None] * self.run.world if self.run.rank == 0 else None
        dist.gather_object(own, ranks)
        best = max(self.epochs, key=lambda each: each.correct, default=None)
        return {
            "run": self.run.run,
            "attempt": self.run.attempt,
            "epoch": self.epoch,
            "start": self.start,
            "position": self.position,
            "consumed": self.consumed,
            "steps": self.steps,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "ranks": ranks,
            "carried": list(tally.carried.words) if tally else None,
            "worlds": [list(each) for each in self.worlds],
            "discarded": self.discarded,
            "history": json.dumps({"lines": self.lines, "epochs": [asdict(each) for each in self.epochs]}),
            "best": file_name(best.epoch + 1, 0) if best else None,
        }

    def restore(self, state: State, phase: Phase) -> None:
        """Restore `state`; `phase` is that of its epoch, from position 0.

        If the number of ranks is unchanged, each continues its own tally. Otherwise the remaining samples are divided
        again, and the digest of the consumed ones is carried as a sum.
        """
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        history = json.loads(state["history"])
        self.lines = history["lines"]
        self.epochs = [Epoch(**each) for each in history["epochs"]]
        self.epoch, ranks = state["epoch"], state["ranks"]
        self.worlds = [(epoch, position, world) for epoch, position, world in state["worlds"]]
        if len(ranks) != self.run.world:
            here = state["epoch"], state["position"]
            self.worlds = [each for each in self.worlds if each[:2] != here] + [(*here, self.run.world)]
        self.discarded = state["discarded"]
        if state["carried"] is None:
            return
        carried = Digest(tuple(state["carried"])) if self.run.rank == 0 else Digest()
        if len(ranks) == self.run.world:
            own = ranks[self.run.rank]
            self.start, self.steps = state["start"], state["steps"]
            consumed, count, outside = Digest(tuple(own["digest"])), own["count"], own["outside"]
            self.loss += own["loss"]
        else:
            self.start = state["position"]
            if self.run.rank == 0:
                carried = sum((Digest(tuple(each["digest"])) for each in ranks), carried)
            consumed, count, outside = Digest(), 0, []
            self.loss += sum(each["loss"] for each in ranks) if self.run.rank == 0 else 0.0
        self.tally = Tally(self.run, replace(phase, start=self.start))
        self.tally.restore(carried, consumed, count, outside)
