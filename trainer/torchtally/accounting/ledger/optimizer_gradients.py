"""What is known of the gradients of a named optimizer: which batches have theirs there.

A gradient is known by its tensor, and by how often that was written to. Its values are read only where these differ.
"""

import weakref
from dataclasses import dataclass, field

from torch import Tensor, strided
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import Optimizer

from torchtally import compat
from torchtally.accounting.ledger.batch_in_flight import Handed
from torchtally.checkpoints.objects import local, parameters_of

READ = 8  # of the first passes, in which gradients are read: on a GPU, that waits for it

Mark = tuple[tuple[int, int] | None, ...]  # of each parameter's gradient: its id, and its version


@dataclass(eq=False)
class Named:
    """An optimizer that the program has named.

    Attributes:
        reference: It, as long as the program has it: each batch may have one of its own.
        number: Its number, from 1.
        replicated: Whether its parameters are to be equal on all ranks.
        held: Batches whose backward passes have reached its parameters, and whose gradients may be there.
        unclear: Batches whose gradients the program has written itself, to those of others or in their place.
        sought: Batches of which that is not known, with the gradients before their backward pass.
    """

    reference: "weakref.ref[Optimizer]"
    number: int
    replicated: bool = True
    held: dict[Handed, None] = field(default_factory=dict)
    unclear: dict[Handed, None] = field(default_factory=dict)
    sought: dict[Handed, Mark] = field(default_factory=dict)
    before: Mark = ()  # the backward pass in progress
    after: Mark = ()  # the last backward pass
    ready: list[Handed] = field(default_factory=list)  # those that its step is about to use
    there: bool = False  # whether the last backward pass, one of the first, has left values that are not 0
    seen: int = 0  # how often these were there later
    used: bool = False  # whether a step has used the gradients, which nothing has cleared since
    again: bool = False  # whether a backward pass has added to such gradients
    looks: int = 0  # for gradients that a step has used
    reads: int = 0  # of gradients that were there
    models: set[int] = field(default_factory=set)  # that it trains
    reached: set[str] = field(default_factory=set)  # phases of batches whose gradients it had in the epoch
    torn: str | None = None  # the batch of a backward pass that an error has ended, whose gradients are there in part
    stepped: int = 0  # the number, among the steps of all, of its last one that has used the gradients of a batch

    @property
    def parameters(self) -> list[Tensor]:
        """What it steps."""
        found = self.reference()
        return [] if found is None else [*parameters_of(found)]

    @property
    def gradients(self) -> list[Tensor]:
        """Those that are there."""
        return [each.grad for each in self.parameters if each.grad is not None]

    def mark(self) -> Mark:
        groups = found.param_groups if (found := self.reference()) else ()
        return compat.marks_of([each.grad for group in groups for each in group["params"]])

    def find(self, now: Mark | None = None) -> None:
        """Hold those whose backward passes have reached the parameters."""
        if not self.sought:
            return
        now = self.mark() if now is None else now
        for each in [each for each, before in self.sought.items() if before != now and any(now)]:
            del self.sought[each]
            self.held[each] = None
            self.reached.add(each.epoch.phase)

    def put_by_hand(self) -> bool:
        """Whether the program has put gradients of those that are sought there itself, such as from `autograd.grad`.

        Where other batches have gradients there, these must be new tensors: clipping writes to the old ones as well.
        """
        if not self.sought or self.is_zeroed():
            return False
        now = _tensors(self.mark())
        return not self.held or any(_tensors(before) != now for before in self.sought.values())

    def forget_unreached(self) -> None:
        """Let go of batches whose backward passes have not reached the parameters: no later pass or clear is theirs.

        FSDP writes to the gradients in a later pass where the program accumulates them without communication.
        """
        if self.sought and not any(isinstance(each, DTensor) for each in self.parameters):
            self.sought = {}

    def pass_ends(self) -> None:
        """Take note of the gradients that a backward pass leaves."""
        self.after = self.mark()
        self.there = self.seen < READ and self._has_values()

    def is_cleared(self) -> bool:
        """Whether the gradients that batches hold are gone since the end of the last backward pass."""
        now = self.mark()
        return not any(now) or (now != self.after and self.is_zeroed()) or self._is_gone()

    def _is_gone(self) -> bool:
        """The same by their values, as `grad.data.zero_()` does not count as written to."""
        if not self.there or self._has_values():
            self.seen += self.there
            self.there = False
        return self.there

    def _has_values(self) -> bool:
        """Whether a value is not 0, of this rank's parts. False where none can be read."""
        found = (local(each) for each in self.gradients) if not compat.captures() else ()
        return any(
            type(each) is Tensor and each.layout is strided and not each.is_meta and bool(each.any()) for each in found
        )

    def keeps_used(self) -> bool:
        """Whether the gradients that a step has used are still there. A loop clears them each time, or never."""
        if not self.used or READ in (self.looks, self.reads):
            return False
        self.looks += 1
        return not self.is_zeroed()  # by their values, as `grad.data.zero_()` does not count as written to

    def overflows(self) -> bool:
        """Whether a gradient is not finite, so that a GradScaler leaves out the step."""
        return not all(bool(local(grad).isfinite().all()) for grad in self.gradients)

    def is_zeroed(self) -> bool:
        """Whether gradients are all zero, as `model.zero_grad(set_to_none=False)` leaves them."""
        if any(grad.is_cuda for grad in self.gradients) and self.reads == READ:
            return False
        found = not self.are_zero
        self.reads += found and self.reads < READ
        return not found

    @property
    def are_zero(self) -> bool:
        """The same without a limit: on a GPU, that waits for it."""
        return not any(bool(grad.any()) for grad in self.gradients)


def _tensors(mark: Mark) -> list[int | None]:
    return [each and each[0] for each in mark]
