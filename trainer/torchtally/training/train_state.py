"""The state of a training: saved to a checkpoint, and restored from one at any world size."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import nn

from torchtally import events, exchange, standard_output
from torchtally.accounting.ledger import resume
from torchtally.accounting.ledger.epoch_in_progress import EpochInProgress
from torchtally.accounting.ledger.state import PhaseState
from torchtally.accounting.ledger.tally import Phase, Run, Tally
from torchtally.accounting.order.schedule import Schedule
from torchtally.accounting.proofs import kept_lines
from torchtally.accounting.proofs.last_line import summary_of
from torchtally.accounting.run import stateful
from torchtally.accounting.run.progress import Progress
from torchtally.checkpoints import conditions
from torchtally.checkpoints.objects import Objects
from torchtally.distributed import running_stats
from torchtally.errors import Refused
from torchtally.proof.digest import Digest


@dataclass(frozen=True)
class Epoch:
    """The results of one epoch over all ranks."""

    epoch: int
    loss: float  # mean over the training samples
    test_loss: float  # mean over the test samples
    correct: int  # of the test samples
    tested: int
    samples_per_second: float  # in training, since the last start

    def tell(self, epochs: int, source: events.Source) -> None:
        """Print the results, of so many epochs, and report them: rank 0 does."""
        standard_output.write(
            f"epoch {self.epoch}/{epochs}: loss {self.loss:.4f}, test accuracy {self.test_accuracy:.2%} "
            f"({self.correct} of {self.tested}), {self.samples_per_second:,.0f} samples/s"
        )
        event = events.Epoch(
            epoch=self.epoch,
            loss=self.loss,
            test_loss=self.test_loss,
            test_accuracy=self.test_accuracy,
            tested=self.tested,
            samples_per_second=self.samples_per_second,
        )
        events.emit(event, source)

    @property
    def test_accuracy(self) -> float:
        """The share of the test samples."""
        return self.correct / self.tested


@dataclass
class TrainState:
    """A training in progress: what checkpoints need of an account.

    Attributes:
        run: The start of the run that this process makes: its own, or that of a loaded state.
        facts: What identifies the training.
        place: Where its checkpoints are, and the option that says so.
        grows: Name of the fact that may be greater than in a checkpoint.
        current: The epoch in progress, once it has begun.
        lines: Those of all ranks together, for each phase that is proved.
        epochs: Results.
        discarded: Samples known to have been consumed by steps that no checkpoint kept.
        loss: This rank's sum over the epoch so far.
        progress: How far the phases are.
    """

    run: Run
    model: nn.Module
    optimizer: torch.optim.Optimizer
    facts: Mapping[str, Any] = field(default_factory=dict)
    place: tuple[str, str] = ("", "")
    grows: str | None = None
    current: EpochInProgress | None = None
    lines: list[dict[str, Any]] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)
    discarded: int = 0

    def __post_init__(self) -> None:
        device = next(self.model.parameters()).device
        self.loss = torch.zeros((), dtype=torch.float64, device=device)
        self._consumed: dict[str, Any] | None = None  # of a loaded state, in the epoch in progress
        self.progress = Progress(self.run.plan)
        self.progress.measure({})

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

    @property
    def anew(self) -> bool:
        """Whether it begins anew where its checkpoints are damaged."""
        return False

    def begin_anew(self) -> None:
        """Take note that there is no checkpoint."""

    @property
    def epoch(self) -> int:
        """Number of the epoch in progress."""
        return self.progress.completed("train") + 1

    @property
    def consumed(self) -> int:
        """Training samples in the weights, over all epochs."""
        return self.progress.phases["train"].consumed + self.position

    @property
    def position(self) -> int:
        """Samples of the epoch's order that all ranks together have consumed."""
        train = self.progress.phases["train"]
        reached = self.current.reached if self.current else train.position.consumed if train.position else 0
        return min(reached, train.n)

    @property
    def done(self) -> float:
        """The completed share of the training, from 0 to 1."""
        return (self.epoch - 1 + self.position / self.progress.phases["train"].n) / self.run.plan["train"]

    def begin(self, phase: Phase) -> EpochInProgress:
        """Begin a phase of an epoch, or what a loaded state has left of it.

        The same ranks go on with their shards. Others divide the remaining samples again.
        """
        known = PhaseState.beginning(n=phase.n, contract=phase.contract, order=phase.order, data=self.run.data)
        self.progress.declare(phase.name, known)
        known = self.progress.phases[phase.name]
        start = skip = 0
        if known.position:
            start, skip = resume.place(known.position, phase.shard(self.run), phase.batch)
        tally = Tally(self.run, replace(phase, start=start))
        schedule = Schedule(tally.shard, phase.batch, skip)
        if known.position and self._consumed:
            self._restore(tally, **self._consumed)
        self.progress.phases[phase.name] = known.shared_out(phase.epoch, start, self.run.world)
        begun = EpochInProgress(tally, schedule)
        if phase.name == "train":
            self.current = begun
        return begun

    def close(self, line: dict[str, Any]) -> None:
        """Add a phase of an epoch, of which this is the line of all ranks together."""
        self.lines.append(line)
        self.progress.close(line)
        if line["phase"] == "train":
            self.current = None
            self.loss.zero_()

    def position_dict(self) -> dict[str, Any]:
        """Return how far the training is, as values of JSON, complete on rank 0 only. A collective call.

        What each rank has consumed in the epoch in progress is stated: nothing else tells what a GPU has taken.
        """
        running_stats.check(running_stats.of(self.model))
        positions, consumed = {}, None
        if self.current:
            tally, positions = self.current.tally, {"train": [self.current.position]}
            digest = list(tally.digest.words)
            own = {"digest": digest, "count": tally.count, "outside": tally.outside, "loss": self.loss.item()}
            consumed = {"ranks": exchange.gather(own), "carried": list(tally.carried.words)}
        return {
            "facts": dict(self.facts),
            stateful.KEY: self.progress.state(self.run, positions).to_text(),
            "consumed": consumed,
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
        """Go on where `position_dict` was called, at any number of ranks.

        Raises Refused if the state is of another training.
        """
        folder, option = self.place
        if refused := conditions.refusal(f"in {folder}", state["facts"], self.facts, option, self.grows):
            raise Refused(refused)
        loaded = stateful.read(state)
        self.progress.load(loaded)
        self.progress.measure({})
        self.run = replace(self.run, run=loaded.run, attempt=loaded.attempt + 1)
        history = json.loads(state["history"])
        self.lines = history["lines"]
        self.epochs = [Epoch(**each) for each in history["epochs"]]
        self.discarded = state["discarded"]
        if self.run.rank == 0:
            kept_lines.add(history["faults"])
        self._consumed = state["consumed"]

    def _restore(self, tally: Tally, ranks: list[dict[str, Any]], carried: list[int]) -> None:
        """Give a new tally, and the loss, what a loaded state has consumed of the epoch.

        The same ranks go on with their own. Others carry the sum.
        """
        before, own = Digest(tuple(carried)) if tally.run.rank == 0 else Digest(), ranks
        if len(ranks) == tally.run.world:
            own = [ranks[tally.run.rank]]
            tally.restore(before, Digest(tuple(own[0]["digest"])), own[0]["count"], own[0]["outside"])
        elif tally.run.rank == 0:
            tally.restore(sum((Digest(tuple(each["digest"])) for each in ranks), before), Digest(), 0, [])
        else:
            own = []
            tally.restore(Digest(), Digest(), 0, [])
        self.loss += sum(each["loss"] for each in own)

    def last_line(self, model: str) -> dict[str, Any]:
        """Return the run's last line, with the hash of its model: of the attempt that has trained it."""
        last = self.lines[-1]
        run = replace(self.run, attempt=last["attempt"], began=last.get("began", 0), pod=last["pod"])
        return summary_of(run, self.progress.phases, None, (), self.discarded, model).printed()
