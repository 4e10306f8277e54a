"""What a training step costs by its number of ranks: fitted to what was measured, and drawn on to more than fit here.

Seconds of a step of w ranks with `rows` samples each, on a machine of some cores:

    (step + row · rows) · shares(w) + alpha · messages(w) + beta · carried(w)

shares(w) is how many ranks take turns on a core, and carried(w) the bytes that a core moves for them, as both memory
and loopback are the cores' work: a ring's 2 (w - 1) / w of the gradient for each rank. messages(w) is log2 w where an
all-reduce is a tree, as NCCL's and MPI's are for short messages. gloo's default is a ring, where the last chunk has
waited for 2 (w - 1) others: for many ranks log2 w is the hope, and the ring is what runs. One rank alone runs without
DDP, whose own time therefore counts as messages.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.optimize import nnls

from bench.results import Results, Series
from bench.spread import spread

Kind = Literal["weak", "strong"]
Messages = Callable[[int], float]

KINDS: tuple[Kind, ...] = ("weak", "strong")
WORLDS = (1, 2, 3, 4, 6, 8)
HELD_OUT = 6  # of no influence on a fit, which is checked on it
BATCH = 32  # samples of a rank and step in weak scaling
GLOBAL_BATCH = 256  # of all ranks in strong scaling
GRADIENT = 4 * (784 * 512 + 512 * 512 + 512 * 10 + 512 + 512 + 10)  # bytes, of the perceptron on Fashion-MNIST


@dataclass(frozen=True)
class Step:
    """A measured one."""

    kind: Kind
    world: int
    seconds: float

    @property
    def rows(self) -> float:
        """Samples of each rank."""
        return BATCH if self.kind == "weak" else GLOBAL_BATCH / self.world


@dataclass(frozen=True)
class AllReduce:
    """A measured one, by itself."""

    world: int
    size: int  # bytes
    seconds: float


@dataclass(frozen=True)
class Network:
    """An all-reduce, of the gradient if nothing else is said."""

    alpha: float  # seconds of a message
    beta: float  # seconds of a byte
    messages: Messages

    def seconds(self, world: int, cores: int, size: int = GRADIENT) -> float:
        return self.alpha * self.messages(world) + self.beta * carried(world, cores, size)


@dataclass(frozen=True)
class Cost:
    """A step."""

    step: float  # seconds, whatever its rows
    row: float  # seconds of each
    network: Network

    def seconds(self, world: int, rows: float, cores: int) -> float:
        return (self.step + self.row * rows) * shares(world, cores) + self.network.seconds(world, cores)

    def efficiency(self, world: int, rows: float) -> float:
        """Of weak scaling, with a core for each rank."""
        return self.seconds(1, rows, 1) / self.seconds(world, rows, world)

    def rows_for(self, efficiency: float, world: int) -> float:
        """How many samples a rank and step it takes for that; infinitely many where they cost nothing."""
        compute = self.network.seconds(world, world) / (1 / efficiency - 1)
        return max(0.0, compute - self.step) / self.row if self.row else math.inf


def tree(world: int) -> float:
    return math.log2(world)


def ring(world: int) -> float:
    return 2 * (world - 1)


def shares(world: int, cores: int) -> float:
    return max(1.0, world / cores)


def carried(world: int, cores: int, size: int = GRADIENT) -> float:
    """Bytes, of an all-reduce of `size` bytes."""
    return 2 * (world - 1) / world * size * shares(world, cores)


def fit(steps: Iterable[Step], cores: int, messages: Messages) -> Cost:
    """To all but what is held out: the least squares of relative errors, with no term below 0."""
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
    """The same to all-reduces alone, of two sizes: on 2 cores a ring's messages and a core's bytes both grow as w - 1,
    so that one size would not tell alpha from beta."""
    known = [each for each in all_reduces if each.world != HELD_OUT]
    terms = [(messages(each.world), carried(each.world, cores, each.size)) for each in known]
    alpha, beta = _least(terms, [each.seconds for each in known])
    return Network(alpha, beta, messages)


def _least(terms: Sequence[tuple[float, ...]], seconds: Sequence[float]) -> list[float]:
    relative = np.array(terms) / np.array(seconds)[:, None]
    scale = relative.max(axis=0)  # bytes are many, and their seconds few
    found, _ = nnls(relative / scale, np.ones(len(seconds)))
    coefficients: list[float] = (found / scale).tolist()
    return coefficients


def speeds(results: Results, kind: Kind, world: int) -> Series | None:
    """Samples a second. Weak scaling is what the throughput is measured in, of some worlds."""
    found = results.one("scaling", kind=kind, world=world)
    if found or kind == "strong":
        return found
    return results.one("throughput", task="fashion-mnist", tool="torchtally", world=world)


def steps(results: Results) -> list[Step]:
    """The median one of each kind and world that was measured."""
    return [
        Step(kind, world, (BATCH * world if kind == "weak" else GLOBAL_BATCH) / spread(series.values).median)
        for kind in KINDS
        for world in WORLDS
        if (series := speeds(results, kind, world))
    ]


def all_reduces(results: Results) -> list[AllReduce]:
    """The median one between pods, of each world and size."""
    return [
        AllReduce(int(each.case["world"]), int(each.case["bytes"]), spread(each.values).median / 1e3)
        for each in results.of("all-reduce")
    ]
