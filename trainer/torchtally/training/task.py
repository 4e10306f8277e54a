"""A workload as the loop knows it: a model, its data, and how the data becomes the model's input."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from torchtally.options import Training


class Inputs(Protocol):
    """What stands for a tensor that does not fit into memory: the rows of a step are made when they are needed."""

    def __getitem__(self, chosen: Any) -> Tensor:
        """The rows of an index tensor or of a slice, on the device."""

    def begin(self, chosen: Tensor, seed: int) -> None:
        """Begin to make the rows of a step to come, with its own seed, while those before it are trained."""

    def to(self, device: torch.device) -> Self: ...


@dataclass(frozen=True)
class Samples:
    """Inputs and labels, indexed alike."""

    inputs: Tensor | Inputs
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device) -> "Samples":
        return Samples(self.inputs.to(device), self.labels.to(device))


@dataclass(frozen=True, kw_only=True)
class Task:
    """A workload: a model, its data and how one becomes the other's input. It knows nothing of ranks."""

    load: Callable[[Path | None, Path], tuple[Samples, Samples]]
    fingerprint: str
    model: Callable[[Training], nn.Module]
    inputs: Callable[[Tensor], Tensor]
    optimizer: Callable[[Iterator[nn.Parameter], Training], torch.optim.Optimizer]
    rate: Callable[[float], float] | None = None  # what the learning rate is multiplied by, from done = 0 to 1
    # In place of the loop: (name, options, output folder).
    fit: Callable[[str, Any, Path], None] | None = None
    files: Callable[[nn.Module], Mapping[str, bytes]] = lambda model: {}  # of other forms of the model, by name
