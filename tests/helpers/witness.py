"""A training whose weights count: row i of a parameter tells how often sample i is in the weights.

It is independent of the tally. Beside it a small model with dropout learns from noisy data, so that equal weights mean
equal random numbers.
"""

import hashlib
import io
import random
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import Dataset


class Noisy(Dataset[tuple[int, Tensor]]):
    """Samples that carry their index and noise of each of the generators that datasets use."""

    fingerprint = "noisy"

    def __init__(self, n: int):
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[int, Tensor]:
        noise = [random.random(), np.random.random(), float(torch.rand(()))]
        return index, torch.tensor([index / self.n, *noise])


class Witness:
    """The weights and their optimizers; gradients are summed over the ranks."""

    def __init__(self, n: int):
        torch.manual_seed(0)
        self.counts = nn.Embedding(n, 1)
        nn.init.zeros_(self.counts.weight)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
        self.optimizers = [
            torch.optim.SGD(self.counts.parameters(), lr=1.0),
            torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9),
        ]

    def loss(self, indices: Tensor, inputs: Tensor) -> Tensor:
        """The sum over the samples of a batch, which may be empty."""
        loss: Tensor = self.model(inputs).square().sum() - self.counts(indices).sum()
        return loss

    def backward(self, indices: Tensor, inputs: Tensor) -> None:
        """Accumulate the gradients of a batch, which may be empty."""
        self.loss(indices, inputs).backward()

    def mean_loss(self, indices: Tensor, inputs: Tensor) -> Tensor:
        """The mean over the samples of a batch."""
        return self.model(inputs).square().mean() - self.counts(indices).mean()

    def step(self, group: dist.ProcessGroup | None = None) -> None:
        for parameter in (*self.counts.parameters(), *self.model.parameters()):
            if parameter.grad is None:  # of a rank whose batches are all dropped
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad, group=group)
        for optimizer in self.optimizers:
            optimizer.step()
        self.zero_grad()

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    @property
    def objects(self) -> dict[str, Any]:
        """What checkpoints of an account hold."""
        optimizers = {f"optimizer {number}": each for number, each in enumerate(self.optimizers)}
        return {"counts": self.counts, "model": self.model, **optimizers}

    def save(self) -> bytes:
        """The contents of a checkpoint."""
        buffer = io.BytesIO()
        torch.save([each.state_dict() for each in (self.counts, self.model, *self.optimizers)], buffer)
        return buffer.getvalue()

    def load(self, saved: bytes) -> None:
        states = torch.load(io.BytesIO(saved))
        for part, own in zip((self.counts, self.model, *self.optimizers), states, strict=True):
            part.load_state_dict(own)

    @property
    def times(self) -> list[int]:
        """How often each sample is in the weights."""
        return [round(float(each)) for each in self.counts.weight.detach().flatten()]

    @property
    def sha256(self) -> str:
        """The hash of the model's weights, bit for bit."""
        return hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in self.model.parameters())).hexdigest()


class Counts:
    """That parameter alone."""

    def __init__(self, n: int) -> None:
        self.rows = nn.Embedding(n, 1)
        nn.init.zeros_(self.rows.weight)
        self.optimizer = torch.optim.SGD(self.rows.parameters(), lr=1.0)

    def step(self, indices: Any) -> None:
        self.optimizer.zero_grad()
        (-self.rows(torch.as_tensor(indices, dtype=torch.int64)).sum()).backward()
        dist.all_reduce(self.rows.weight.grad)
        self.optimizer.step()

    @property
    def times(self) -> list[int]:
        times: list[int] = self.rows.weight.detach().int().flatten().tolist()
        return times


class Direct(torch.optim.Optimizer):
    """An optimizer that needs no gradients, as evolution strategies need none, and has no state."""

    def __init__(self, weight: torch.nn.Parameter) -> None:
        super().__init__([weight], {"lr": 1.0})
        self.rows = torch.empty(0, dtype=torch.int64)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.param_groups[0]["params"][0][self.rows] += 1
