"""Samples of an evaluation that are trained."""

from torchtally.accounting.guards.guard import Guard
from torchtally.accounting.ledger.open_epochs import Open


class Evaluated(Guard):
    """Asks for steps of named optimizers in epochs of phases that do not train."""

    name = "evaluated"

    def __init__(self, epochs: Open) -> None:
        self._open = epochs

    def closes(self, phase: str, epoch: str) -> str | None:
        if epoch not in self._open.evaluated:
            return None
        return (
            f"an optimizer has stepped in {epoch}, whose loader or sampler has trains=False, so nothing tells which "
            "batches are in the weights: it must have trains=True, and its losses go through account.weigh()"
        )
