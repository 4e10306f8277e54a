"""A resume that loads the state of an account without the weights of the same moment."""

from collections.abc import Sequence

from torchtally.accounting.guards.guard import Guard
from torchtally.accounting.ledger.gradients import Gradients
from torchtally.accounting.ledger.state import Hash
from torchtally.accounting.ledger.tally import Membership
from torchtally.accounting.ledger.weights import class_of, is_part, is_whole
from torchtally.checkpoints.hashing import hash_of
from torchtally.checkpoints.objects import parameters_of


class Loaded(Guard):
    """Seeks parameters with the hashes that a state was saved with."""

    name = "loaded"

    def __init__(self, members: Membership, gradients: Gradients) -> None:
        self._members, self._gradients = members, gradients
        self._sought: set[Hash] = set()  # what a loaded state was saved with, until it is found

    @property
    def saved(self) -> tuple[Hash, ...]:
        """Those that a state is saved with: it is the same on every rank, so ranks with other parameters save none."""
        weights, members = self._gradients.weights, self._members
        if weights.blind or weights.in_parts or members.world < members.everyone.size():
            return ()
        kept = [each for each in weights.watched if each.left is not None and each.lasts and each.steps > 1]
        if not all(each.replicated for each in kept):
            return ()
        found = [(each.before, now) for each in kept if (now := each.values) is not None]
        return tuple((*class_of(now), hashed) for before, now in found if (hashed := hash_of(now)) != before)

    def seek(self, saved: Sequence[Hash]) -> None:
        """Expect what a state was saved with, now or at the first batch: some optimizers rewrite what is loaded."""
        self._sought = set() if self._find(set(saved)) else set(saved)

    def problem(self) -> str | None:
        sought, self._sought = self._sought, set()
        if not sought or self._find(sought) is not False:
            return None
        return (
            "the account's state was loaded, and no parameter of an optimizer has a value that was saved with it: load "
            "the states of the model and its optimizer from the same checkpoint, with strict=True, and change no "
            "weight before the first batch"
        )

    def _find(self, sought: set[Hash]) -> bool | None:
        """Whether a named optimizer has a parameter with a value that is sought; None if parameters cannot tell."""
        classes, compared, in_parts = {each[:2] for each in sought}, False, False
        for each in (parameter for optimizer in self._gradients.optimizers for parameter in parameters_of(optimizer)):
            in_parts |= is_part(each)
            if is_whole(each) and class_of(each) in classes:
                compared = True
                if (*class_of(each), hash_of(each)) in sought:
                    return True
        return False if compared and not in_parts else None
