"""What optimizers step with beside the batches of the account: evaluations, and data of the program's own.

While the loop is at a batch that does not train, hooks of parameters tell of the backward passes that reach them.
"""

from collections.abc import Iterable

from torch import Tensor
from torch.utils.hooks import RemovableHandle

from torchtally.accounting.ledger.epoch_in_progress import EpochInProgress
from torchtally.accounting.ledger.open_epochs import Open
from torchtally.accounting.ledger.optimizer_gradients import Named
from torchtally.checkpoints.objects import local


class Beside:
    """The gradients of one account that belong to none of its batches.

    Attributes:
        at: The epoch of the batch that the loop is at.
        outside: Whether an optimizer that trains batches has stepped with gradients from outside the loops.
    """

    def __init__(self, epochs: Open) -> None:
        self._open = epochs
        self.at: EpochInProgress | None = None
        self._hooks: list[RemovableHandle] = []
        # By optimizer whose parameters have other gradients: of which evaluation, or None for those from outside.
        self._foreign: dict[Named, EpochInProgress | None] = {}
        self.outside = False

    def enter(self, epoch: EpochInProgress | None, optimizers: Iterable[Named] = ()) -> None:
        """The loop is at a batch of an epoch, or at none."""
        self.look()
        if epoch is self.at:
            return
        self.at = epoch
        while self._hooks:
            self._hooks.pop().remove()
        if epoch is None or epoch.trains:
            return
        for named in optimizers:

            def note(_: Tensor, named: Named = named) -> None:
                self._foreign[named] = epoch

            leaves = (each for each in named.parameters if each.is_leaf and each.requires_grad)
            self._hooks += [each.register_post_accumulate_grad_hook(note) for each in leaves]

    def arrive(self, epoch: EpochInProgress, optimizers: Iterable[Named]) -> None:
        """The loop receives a batch of an epoch. Gradients that are there as it comes from outside are of no batch.

        A loop that fetches ahead has left an epoch before it trains the last batch.
        """
        for named in optimizers if self.at is None or self.at.complete else ():
            known = named in self._foreign or named.held or named.used
            if not known and any(bool(local(grad).any()) for grad in named.gradients):
                self._foreign[named] = None
        self.enter(epoch, optimizers)

    def leave(self, epoch: EpochInProgress) -> None:
        """The loop has left an epoch."""
        if epoch is self.at:
            self.enter(None)

    def look(self) -> None:
        """Forget gradients that something has cleared."""
        for named in [each for each in self._foreign if each.are_zero]:
            del self._foreign[named]

    def step(self, named: Named, *, alone: bool = False) -> None:
        """An optimizer steps with what is there, perhaps `alone`, without gradients of batches."""
        self.look()
        epoch = self._foreign.get(named)
        self.outside |= named in self._foreign and not epoch
        if not epoch and alone and (named.models or (self.at and not self.at.trains)):
            evaluation = None if self._open.pending else self._open.evaluation
            if (evaluation or not self.at) and not named.are_zero:
                epoch, self.outside = evaluation, self.outside or not evaluation
        if epoch and not self._open.evaluated:
            within = epoch in (self.at, self._open.evaluation)
            self._open.evaluated = f"{'in' if within else 'with gradients of'} {epoch.name}"
