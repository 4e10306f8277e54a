"""Samples of an evaluation that are trained."""

from torch.optim.optimizer import Optimizer

from torchtally.accounting.guards.guard import Guard


class Evaluated(Guard):
    """Notes the steps of named optimizers in epochs of phases that do not train."""

    name = "evaluated"

    def __init__(self) -> None:
        self._epochs: set[str] = set()

    def has_stepped(self, optimizer: Optimizer, trained: bool, evaluates: str | None) -> None:
        if evaluates:
            self._epochs.add(evaluates)

    def closes(self, phase: str, epoch: str) -> str | None:
        if epoch not in self._epochs:
            return None
        return (
            f"an optimizer has stepped in {epoch}, whose loader or sampler has trains=False, so nothing tells which "
            "batches are in the weights: it must have trains=True, and its losses go through account.weigh()"
        )
