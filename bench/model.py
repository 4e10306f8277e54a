"""A model of a training step's duration by the number of ranks: fitted to measurements, extrapolated to more ranks.

Seconds of a step of w ranks with `rows` samples each, on a machine with some cores:

    (step + row · rows) · shares(w) + alpha · messages(w) + beta · carried(w)

shares(w) is the number of ranks on a core, and carried(w) the bytes that a core moves for them, because memory and
loopback are both work of a core: a ring's 2 (w - 1) / w of the gradient for each rank. messages(w) is log2 w for a
tree, which NCCL and MPI use for short messages, and 2 (w - 1) for a ring, which is gloo's default. One rank runs
without DDP, so DDP's own time counts as messages.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from bench.results import Results, Series
from bench.spread import spread

Kind = Literal["weak", "strong"]
Messages = Callable[[int], float]

KINDS: tuple[Kind, ...] = ("weak", "strong")
WORLDS = (1, 2, 3, 4, 6, 8)
HELD_OUT = 6  # ranks that no fit uses, to check it
BATCH = 32  # samples of a rank and step in weak scaling
GLOBAL_BATCH = 256  # of all ranks in strong scaling
GRADIENT = 4 * (784 * 512 + 512 * 512 + 512 * 10 + 512 + 512 + 10)  # bytes, of the perceptron on Fashion-MNIST


@dataclass(frozen=True)
class Step:
    """A measured step."""

    kind: Kind
    world: int
    seconds: float

    @property
    def rows(self) -> float:
        """Samples of each rank."""
        return BATCH if self.kind == "weak" else GLOBAL_BATCH / self.world


@dataclass(frozen=True)
class AllReduce:
    """A measured all-reduce without a training."""

    world: int
    size: int  # bytes
    seconds: float


@dataclass(frozen=True)
class Network:
    """The cost of an all-reduce, by default of the gradient."""

    alpha: float  # seconds of a message
    beta: float  # seconds of a byte
    messages: Messages

    def seconds(self, world: int, cores: int, size: int = GRADIENT) -> float:
        return self.alpha * self.messages(world) + self.beta * carried(world, cores, size)


@dataclass(frozen=True)
class Cost:
    """The cost of a step."""

    step: float  # seconds, at any number of rows
    row: float  # seconds of a row
    network: Network

    def seconds(self, world: int, rows: float, cores: int) -> float:
        return (self.step + self.row * rows) * shares(world, cores) + self.network.seconds(world, cores)

    def efficiency(self, world: int, rows: float) -> float:
        """The efficiency of weak scaling with a core for each rank."""
        return self.seconds(1, rows, 1) / self.seconds(world, rows, world)

    def rows_for(self, efficiency: float, world: int) -> float:
        """Samples of each rank in a step for that efficiency; infinite if samples cost nothing."""
        compute = self.network.seconds(world, world) / (1 / efficiency - 1)
        return max(0.0, compute - self.step) / self.row if self.row else math.inf


def tree(world: int) -> float:
    return math.log2(world)


def ring(world: int) -> float:
    return 2 * (world - 1)


def shares(world: int, cores: int) -> float:
    return max(1.0, world / cores)


def carried(world: int, cores: int, size: int = GRADIENT) -> float:
    """Bytes that a core moves in an all-reduce of `size` bytes."""
    return 2 * (world - 1) / world * size * shares(world, cores)


def fit(steps: Iterable[Step], cores: int, messages: Messages) -> Cost:
    """Fit the model by least squares of relative errors with non-negative terms, without HELD_OUT."""
    known = [each for each in steps if each.world != HELD_OUT]
    terms = [
        (
            shares(each.world, cores),
            each.rows * shares(each.world, cores),
            messages(each.world),
            carried(each.world, cores),
        )
        for each in known
    ]
    step, row, alpha, beta = _least(terms, [each.seconds for each in known])
    return Cost(step, row, Network(alpha, beta, messages))


def fit_network(all_reduces: Iterable[AllReduce], cores: int, messages: Messages) -> Network:
    """Fit the same to all-reduces of two sizes.

    One size would not separate alpha from beta: on 2 cores, a ring's messages and a core's bytes both grow as w - 1.
    """
    known = [each for each in all_reduces if each.world != HELD_OUT]
    terms = [(messages(each.world), carried(each.world, cores, each.size)) for each in known]
    alpha, beta = _least(terms, [each.seconds for each in known])
    return Network(alpha, beta, messages)


def _least(terms: Sequence[tuple[float, ...]], seconds: Sequence[float]) -> list[float]:
    from scipy.optimize import nnls  # where `make bench-gpu` runs there may be none

    relative = np.array(terms) / np.array(seconds)[:, None]
    scale = relative.max(axis=0)  # bytes are of another magnitude than messages
    found, _ = nnls(relative / scale, np.ones(len(seconds)))
    coefficients: list[float] = (found / scale).tolist()
    return coefficients


def speeds(results: Results, kind: Kind, world: int) -> Series | None:
    """Samples per second. The throughput of some worlds is that of weak scaling."""
    found = results.one("scaling", kind=kind, world=world)
    if found or kind == "strong":
        return found
    return results.one("throughput", task="fashion-mnist", tool="torchtally", world=world)


def steps(results: Results) -> list[Step]:
    """The median step of each kind and world that was measured."""
    return [
        Step(kind, world, (BATCH * world if kind == "weak" else GLOBAL_BATCH) / spread(series.values).median)
        for kind in KINDS
        for world in WORLDS
        if (series := speeds(results, kind, world))
    ]


def all_reduces(results: Results) -> list[AllReduce]:
    """The median all-reduce between pods of each world and size."""
    return [
        AllReduce(int(each.case["world"]), int(each.case["bytes"]), spread(each.values).median / 1e3)
        for each in results.of("all-reduce")
    ]


def extrapolated(values: Mapping[int, float], n: int, degree: int) -> float:
    """The value at `n` of the polynomial that fits `values` best."""
    return float(np.polyval(np.polyfit(list(values), list(values.values()), degree), n))
