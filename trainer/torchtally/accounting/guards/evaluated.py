"""Samples of an evaluation that are trained."""

from torchtally.accounting.guards.guard import Guard
from torchtally.accounting.ledger.open_epochs import Open


class Evaluated(Guard):
    """Asks for steps of named optimizers with gradients of phases that do not train."""

    name = "evaluated"

    def __init__(self, epochs: Open) -> None:
        self._open = epochs

    def problem(self) -> str | None:
        if self._open.evaluated is None:
            return None
        return (
            f"an optimizer has stepped {self._open.evaluated}, whose loader or sampler has trains=False, so nothing "
            "tells which batches are in the weights: it must have trains=True, and its losses go through "
            "account.weigh(); or optimizer.zero_grad() must follow a backward pass that only evaluates"
        )

    def closes(self, phase: str, epoch: str) -> str | None:
        return self.problem()

    def ends(self) -> str | None:
        return self.problem()
