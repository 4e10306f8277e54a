"""A training that is killed after a checkpoint, and what must not depend on it."""

import dataclasses
import hashlib
from typing import Any

from torch.utils._pytree import tree_flatten
from toy import Fitted

from torchtally.checkpoints.checkpoints import Checkpoints
from torchtally.checkpoints.coordination import Rounds
from torchtally.checkpoints.of_rank_0 import CheckpointsOfRank0

FACTS = {"option lr": 0.1}


class Interrupted(Exception):
    """As if the pod had been killed."""


class _Interrupts(Rounds):
    """Saves after a number of steps, makes some more, and is gone. Without numbers, it is not interrupted."""

    interruption: tuple[int, int] | None = None
    _made = _seen = 0

    def after_commit(self) -> None:
        super().after_commit()
        self._made += 1

    def before_batch(self) -> None:
        super().before_batch()
        if not self.interruption or self._made == self._seen:
            return
        self._seen = self._made
        save_after, more = self.interruption
        if self._made == save_after:
            self.save(wait=True)
        if self._made == save_after + more:
            self._note_reached()
            raise Interrupted


class Interrupting(_Interrupts, CheckpointsOfRank0):
    """That of rank 0's folder."""


class InterruptingShared(_Interrupts, Checkpoints):
    """That of a folder which all ranks share."""


def outcome(fitted: Fitted) -> dict[str, Any]:
    """What must not depend on interruptions."""
    states = (*fitted.model.state_dict().values(), *fitted.optimizer.state_dict()["state"].values())
    tensors, _ = tree_flatten(states)
    weights = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in tensors)).hexdigest()
    lines = [{key: value for key, value in line.items() if key not in ("attempt", "began")} for line in fitted.lines]
    epochs = [dataclasses.replace(epoch, samples_per_second=0) for epoch in fitted.epochs]
    return {"hash": weights, "lines": lines, "epochs": epochs}
