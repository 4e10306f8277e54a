"""A training step as a CUDA graph: kernels that Python launches one by one would wait for Python."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from torchtally.log import log

Step = Callable[[Tensor, float], Tensor]  # (sample indices, what their loss is scaled by) -> loss, the sum over samples


class Graph(Protocol):
    """Work on fixed memory that is captured once and then replayed."""

    def warm_up(self, work: Callable[[], None]) -> None:
        """Run `work` eagerly, on the stream that captures it later."""

    def capture(self, work: Callable[[], None]) -> None:
        """Capture `work` without running it. Raises RuntimeError if it cannot be captured."""

    def replay(self) -> None:
        """Run the captured work."""


class CudaGraph:
    """A CUDA graph, made as PyTorch's notes on CUDA semantics describe ("Whole-network capture")."""

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
    """A step that is captured after a few batches of `rows` rows and then replayed, with bit-equal results.

    The work may depend only on the values of the indices. A batch of another size runs eagerly. Random numbers of a
    replay follow from the generator's seed at that time.
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
                log.warning(f"the step cannot be captured in a CUDA graph, so it runs slower: {why}")
                return self._step(chosen, scale)
        self._graph.replay()
        return self._loss

    def _work(self) -> None:
        self._loss = self._step(self._chosen, self._scale)
