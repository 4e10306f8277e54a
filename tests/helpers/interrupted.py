"""A training that is killed after a checkpoint, and what must not depend on it."""

import dataclasses
import hashlib
from typing import Any

from torch.utils._pytree import tree_flatten

from torchtally.checkpoints.checkpoints import Checkpoints
from torchtally.checkpoints.rounds import Rounds
from torchtally.training.checkpointer import Checkpointer
from torchtally.training.train_state import TrainState

FACTS = {"task": "toy", "seed": 3}


class Interrupted(Exception):
    """As if the pod had been killed."""


class _Interrupts(Rounds):
    """Saves after a number of steps, makes some more, and is gone. Without numbers, it is not interrupted."""

    interruption: tuple[int, int] | None = None
    _made = 0

    def before_batch(self) -> None:
        super().before_batch()
        if not self.interruption:
            return
        self._made += 1
        save_after, more = self.interruption
        if self._made == save_after:
            self.save(wait=True)
        if self._made == save_after + more:
            self._note_reached()
            raise Interrupted


class Interrupting(_Interrupts, Checkpointer):
    """That of rank 0's folder."""


class InterruptingShared(_Interrupts, Checkpoints):
    """That of a folder which all ranks share."""


def outcome(train_state: TrainState) -> dict[str, Any]:
    """What must not depend on interruptions."""
    states = (*train_state.model.state_dict().values(), *train_state.optimizer.state_dict()["state"].values())
    tensors, _ = tree_flatten(states)
    weights = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in tensors)).hexdigest()
    lines = [{key: value for key, value in line.items() if key != "attempt"} for line in train_state.lines]
    epochs = [dataclasses.replace(epoch, samples_per_second=0) for epoch in train_state.epochs]
    return {"hash": weights, "lines": lines, "epochs": epochs}
