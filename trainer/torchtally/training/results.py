"""The results of a training's epochs, which its checkpoints hold beside the weights."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from torchtally import events, exchange, standard_output
from torchtally.accounting.proofs import kept_lines
from torchtally.errors import Refused

if TYPE_CHECKING:
    from torchtally.accounting.account import Account


_OF_THE_ACCOUNT = ("task", "data", "seed", "option epochs")  # facts that its state has


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


class Results:
    """What a training has found so far: an object of its checkpoints.

    Args:
        account: Of the training.
        facts: What identifies it.
        option: That of the folder, for a sentence.
        device: Where losses are added up.

    Attributes:
        epochs: Results of those that are complete.
        loss: This rank's sum over the epoch in progress.
    """

    def __init__(self, account: "Account", facts: Mapping[str, Any], option: str, device: torch.device):
        self._account, self._option = account, option
        self._facts = {name: value for name, value in facts.items() if name not in _OF_THE_ACCOUNT}
        self.epochs: list[Epoch] = []
        self.loss = torch.zeros((), dtype=torch.float64, device=device)

    @property
    def best(self) -> Epoch | None:
        """The epoch with the most correct predictions."""
        return max(self.epochs, key=lambda each: each.correct, default=None)

    def state_dict(self) -> dict[str, str]:
        """Return all of it as text, complete on rank 0 only. A collective call."""
        found = {
            "facts": self._facts,
            "losses": exchange.gather(self.loss.item()),
            "epochs": [asdict(each) for each in self.epochs],
            "lines": kept_lines.of_all_ranks(str(self._account.source.run)),
        }
        return {"results": json.dumps(found)}

    def load_state_dict(self, state: Mapping[str, str]) -> None:
        """Continue at a state, at any number of ranks. Raises Refused if it is of another training."""
        found = json.loads(state["results"])
        for name, value in self._facts.items():
            if (before := found["facts"].get(name)) != value:
                raise Refused(
                    f"it is of another training: its {name} is {json.dumps(before)} and now it is {json.dumps(value)}; "
                    f"continue as before, or choose another {self._option}"
                )
        self.epochs = [Epoch(**each) for each in found["epochs"]]
        losses, rank = found["losses"], self._account.rank
        same = len(losses) == self._account.world
        self.loss.fill_(losses[rank] if same else 0 if rank else sum(losses))
        if rank == 0:
            kept_lines.add(found["lines"])
