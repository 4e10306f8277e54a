"""The matrix products and convolutions of a training step, without the operations between them.

Each layer has a forward product, the gradient of its weights and, except for the first layer, that of its input.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch

from bench.peers.common import BATCH

Step = Callable[[], None]


@dataclass(frozen=True)
class Linear:
    """A layer from `inside` to `outside` features."""

    inside: int
    outside: int

    @property
    def operations(self) -> int:
        """Operations of each of the three products for one sample."""
        return 2 * self.inside * self.outside


@dataclass(frozen=True)
class Convolution:
    """A convolution from `inside` channels of `side` x `side` pixels to `outside` channels."""

    inside: int
    outside: int
    side: int
    kernel: int
    stride: int = 1
    padding: int = 0

    @property
    def operations(self) -> int:
        """Operations of each of the three products for one sample."""
        side = (self.side + 2 * self.padding - self.kernel) // self.stride + 1
        return 2 * side**2 * self.kernel**2 * self.inside * self.outside


# The layers of bench.peers.common.model.
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
    """The products of a step on preallocated tensors; those of convolutions have this layout."""
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
    # Each call allocates its results: the variants with an output argument allocate as well, and copy.
    aten = torch.ops.aten
    x = torch.randn(BATCH, layer.inside, layer.side, layer.side).to(memory_format=layout)
    w = torch.randn(layer.outside, layer.inside, layer.kernel, layer.kernel).to(memory_format=layout)
    how = ([layer.stride] * 2, [layer.padding] * 2, [1, 1], False, [0, 0], 1)
    dy = torch.randn_like(aten.convolution(x, w, None, *how))
    return [
        lambda: aten.convolution(x, w, None, *how),
        lambda: aten.convolution_backward(dy, x, w, None, *how, [not first, True, False]),
    ]
