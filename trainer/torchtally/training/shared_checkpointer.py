"""Checkpoints that all ranks write: to a folder that all pods share, or to an object store (--checkpoints)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from torchtally import events
from torchtally.checkpoints import conditions
from torchtally.checkpoints.checkpoints import Checkpoints
from torchtally.checkpoints.objects import Objects
from torchtally.errors import Refused
from torchtally.training.checkpoint_file import State
from torchtally.training.train_state import TrainState


class SharedCheckpointer:
    """Saves and stops by the checkpoints of an account. The best one is not kept. Making one is a collective call.

    Args:
        folder: A path, or the URL of an object store.
        facts: What identifies the training.
        pod: Name of this rank's pod.
        keep: Number of checkpoints to keep.
        seconds: Time between two.
        grows: The fact that may be greater than in a checkpoint.
    """

    def __init__(
        self,
        folder: str,
        facts: Mapping[str, Any],
        pod: str,
        model: nn.Module,
        optimizer: Optimizer,
        keep: int,
        seconds: float,
        grows: str | None = None,
    ):
        self._training = _Training(folder, facts, pod, grows)
        objects = {"model": model, "optimizer": optimizer}
        self._checkpoints = Checkpoints(self._training, folder, objects, every=seconds, keep=keep)

    @property
    def interval(self) -> float:
        """Seconds between two checkpoints."""
        return self._checkpoints.interval

    @property
    def saved_at(self) -> float:
        """When the last one was written, or else when this was made: seconds since 1970."""
        return self._checkpoints.saved_at

    def resume(self) -> State | None:
        """Load the model and the optimizer from the newest whole checkpoint, and return the rest of its state.

        A collective call. Raises on every rank: Refused for a checkpoint of another training; Volume if none can be
        read.
        """
        self._checkpoints.resume()
        return self._training.loaded

    def save(self, train_state: TrainState) -> None:
        """Save, and wait until it is written. A collective call. A failed write is a warning."""
        self._training.train_state = train_state
        self._checkpoints.save(wait=True)

    def after_step(self, train_state: TrainState) -> None:
        """Save if it is due; stop if any rank asks for it. Raises Stopped on every rank."""
        self._checkpoints.after_commit()
        self._checkpoints.before_batch()

    def after_epoch(self, train_state: TrainState, last: bool) -> None:
        """Save; stop if any rank asks for it, except after the last epoch. Raises Stopped on every rank."""
        self._checkpoints.save(wait=False)
        if not last:
            self._checkpoints.heed_signals()

    @property
    def saved(self) -> tuple[str, str] | None:
        """On rank 0, URL and SHA-256 of the manifest of the last checkpoint, if it could be written."""
        return self._checkpoints.saved

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End. A training that has not failed waits for the checkpoint that is being written."""
        self._checkpoints.close(wait=kind is None)


class _Training:
    """A training as Checkpoints see an account."""

    def __init__(self, folder: str, facts: Mapping[str, Any], pod: str, grows: str | None):
        self._folder, self._facts, self._pod, self._grows = folder, dict(facts), pod, grows
        self.train_state: TrainState | None = None  # once it is known
        self.loaded: State | None = None

    @property
    def task(self) -> str:
        return str(self._facts["task"])

    @property
    def source(self) -> events.Source:
        if self.train_state:
            return self.train_state.run.source
        source = events.Source(pod=self._pod, rank=dist.get_rank())
        return replace(source, run=self.loaded["run"], attempt=self.loaded["attempt"] + 1) if self.loaded else source

    @property
    def reached(self) -> tuple[int, int, int]:
        assert self.train_state
        return self.train_state.epoch, self.train_state.position, self.train_state.consumed

    @property
    def discarded(self) -> int:
        if self.train_state:
            return self.train_state.discarded
        return self.loaded["discarded"] if self.loaded else 0

    @discarded.setter
    def discarded(self, samples: int) -> None:
        assert self.loaded
        self.loaded["discarded"] = samples

    def save_problem(self, objects: Objects) -> None:
        pass

    def position_dict(self) -> dict[str, Any]:
        assert self.train_state
        return {"facts": self._facts, **self.train_state.progress()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        where = f"in {self._folder}"
        if refused := conditions.refusal(where, state["facts"], self._facts, "--checkpoints", self._grows):
            raise Refused(refused)
        self.loaded = dict(state)

    def begin_anew(self) -> None:
        pass
