"""A training that is killed after a checkpoint, and what must not depend on it."""

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

from torch.utils._pytree import tree_flatten

from torchtally.training.checkpointer import Checkpointer
from torchtally.training.train_state import TrainState

FACTS = {"task": "toy", "seed": 3}


class Interrupted(Exception):
    """As if the pod had been killed."""


class Interrupting(Checkpointer):
    """Saves after a number of steps, makes some more, and is gone."""

    def __init__(self, folder: Path, save_after: int, more: int) -> None:
        super().__init__(folder, FACTS, 2, 1e9)
        self._save_after, self._end_after, self._made = save_after, save_after + more, 0

    def after_step(self, train_state: TrainState) -> None:
        self._made += 1
        if self._made == self._save_after:
            self.save(train_state)
        if self._made == self._end_after:
            self._record_progress(train_state)
            raise Interrupted


def outcome(train_state: TrainState) -> dict[str, Any]:
    """What must not depend on interruptions."""
    states = (*train_state.model.state_dict().values(), *train_state.optimizer.state_dict()["state"].values())
    tensors, _ = tree_flatten(states)
    weights = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in tensors)).hexdigest()
    lines = [{key: value for key, value in line.items() if key != "attempt"} for line in train_state.lines]
    epochs = [dataclasses.replace(epoch, samples_per_second=0) for epoch in train_state.epochs]
    return {"hash": weights, "lines": lines, "epochs": epochs}
