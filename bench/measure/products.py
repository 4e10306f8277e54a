"""The bare products of a training step: its convolutions and linear layers alone, without anything between them.

Of each layer the forward one, the gradient of the weights, and that of the input, which the first needs none of.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch

from bench.peers.common import BATCH

Step = Callable[[], None]


@dataclass(frozen=True)
class Linear:
    """From so many numbers a sample to so many."""

    inside: int
    outside: int

    @property
    def operations(self) -> int:
        """Of one product of one sample; each of the three has as many."""
        return 2 * self.inside * self.outside


@dataclass(frozen=True)
class Convolution:
    """From `inside` channels of `side` x `side` numbers a sample to `outside` channels."""

    inside: int
    outside: int
    side: int
    kernel: int
    stride: int = 1
    padding: int = 0

    @property
    def operations(self) -> int:
        """As of a linear layer."""
        side = (self.side + 2 * self.padding - self.kernel) // self.stride + 1
        return 2 * side**2 * self.kernel**2 * self.inside * self.outside


# Those of bench.peers.common.model.
LAYERS: dict[str, Sequence[Linear | Convolution]] = {
    "fashion-mnist": (Linear(784, 512), Linear(512, 512), Linear(512, 10)),
    "mnist-cnn": (Convolution(1, 10, 28, 5), Convolution(10, 20, 12, 5), Linear(320, 50), Linear(50, 10)),
    "keras-mnist": (
        Convolution(1, 12, 28, 3, padding=1),
        Convolution(12, 24, 28, 6, stride=2),
        Convolution(24, 32, 12, 6, stride=2, padding=2),
        Linear(32, 256),
        Linear(256, 10),
    ),
}


def operations(task: str) -> int:
    """Multiplications and additions of a step."""
    first, *others = (layer.operations for layer in LAYERS[task])
    return BATCH * (2 * first + 3 * sum(others))


def step_of(task: str, layout: torch.memory_format) -> Step:
    """One step's, of tensors that are there before it; those of convolutions in this layout."""
    parts = [
        _linear(layer, first=not number) if isinstance(layer, Linear) else _convolution(layer, layout, first=not number)
        for number, layer in enumerate(LAYERS[task])
    ]
    products = list(chain.from_iterable(parts))

    def step() -> None:
        for product in products:
            product()

    return step


def _linear(layer: Linear, first: bool) -> list[Callable[[], object]]:
    x, w, dy = (
        torch.randn(shape) for shape in ((BATCH, layer.inside), (layer.outside, layer.inside), (BATCH, layer.outside))
    )
    y, dw, dx = torch.empty_like(dy), torch.empty_like(w), torch.empty_like(x)
    products: list[Callable[[], object]] = [
        lambda: torch.mm(x, w.t(), out=y),
        lambda: torch.mm(dy.t(), x, out=dw),
        lambda: torch.mm(dy, w, out=dx),
    ]
    return products[: 2 if first else 3]


def _convolution(layer: Convolution, layout: torch.memory_format, first: bool) -> list[Callable[[], object]]:
    # Their results are made by each call: what is said to take them instead makes them too, and copies.
    aten = torch.ops.aten
    x = torch.randn(BATCH, layer.inside, layer.side, layer.side).to(memory_format=layout)
    w = torch.randn(layer.outside, layer.inside, layer.kernel, layer.kernel).to(memory_format=layout)
    how = ([layer.stride] * 2, [layer.padding] * 2, [1, 1], False, [0, 0], 1)
    dy = torch.randn_like(aten.convolution(x, w, None, *how))
    return [
        lambda: aten.convolution(x, w, None, *how),
        lambda: aten.convolution_backward(dy, x, w, None, *how, [not first, True, False]),
    ]
