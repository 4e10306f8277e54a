"""One training step of a rank, and how a GPU replays it: launched one by one its kernels would wait for Python."""

import sys
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

Step = Callable[[Tensor, float], Tensor]  # (sample indices, what their loss is scaled by) -> loss, the sum over samples


class Graph(Protocol):
    """Work on fixed memory that can be captured once and replayed."""

    def warm_up(self, work: Callable[[], None]) -> None:
        """Do it as it is, in such a way that it can be captured later."""

    def capture(self, work: Callable[[], None]) -> None:
        """Note what it does, without doing it. Raises RuntimeError if that cannot be noted."""

    def replay(self) -> None:
        """Do what was noted."""


class CudaGraph:
    """CUDA's, as PyTorch's notes on CUDA semantics ask for it to be made ("Whole-network capture")."""

    def __init__(self, device: torch.device) -> None:
        self._graph, self._aside = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)

    def warm_up(self, work: Callable[[], None]) -> None:
        self._aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._aside):
            work()
        torch.cuda.current_stream().wait_stream(self._aside)

    def capture(self, work: Callable[[], None]) -> None:
        with torch.cuda.graph(self._graph, stream=self._aside):
            work()

    def replay(self) -> None:
        self._graph.replay()


class Captured:
    """A step whose full batches, `rows` on each, are captured after a few and then replayed: to the bit the same.

    What it does may depend on the indices' values alone. A batch of another size is done as it is. What a replay draws
    follows from the generator's seed at that time.
    """

    _WARM_UP = 3  # steps, as many as PyTorch's notes take

    def __init__(self, step: Step, rows: int, graph: Graph, device: torch.device) -> None:
        self._step, self._rows = step, rows
        self._graph: Graph | None = graph
        self._chosen = torch.zeros(rows, dtype=torch.int64, device=device)
        self._loss = torch.zeros((), device=device)
        self._scale = 0.0
        self._done = 0

    def __call__(self, chosen: Tensor, scale: float) -> Tensor:
        if self._graph is None or len(chosen) != self._rows or (self._done and scale != self._scale):
            return self._step(chosen, scale)
        self._chosen.copy_(chosen)
        self._scale = scale
        self._done += 1
        if self._done <= self._WARM_UP:
            self._graph.warm_up(self._work)
            return self._loss
        if self._done == self._WARM_UP + 1:
            try:
                self._graph.capture(self._work)
            except RuntimeError as error:
                self._graph = None
                why = str(error).splitlines()[0]
                print(f"torchtally: the step cannot be captured and is slower for it: {why}", file=sys.stderr)
                return self._step(chosen, scale)
        self._graph.replay()
        return self._loss

    def _work(self) -> None:
        self._loss = self._step(self._chosen, self._scale)
