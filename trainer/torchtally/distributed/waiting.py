"""How long this process waits for other ranks, by the clock of its training thread.

Python waits for a collective call in `Work.wait`. DDP waits in C++, at the end of a backward pass, for the gradients
that are not summed yet: what follows the last gradient of this rank there is a wait.
"""

import functools
import threading
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from torchtally import compat


class Waited:
    """Seconds, since the start of this process.

    Attributes:
        calls: In collective calls.
        passes: At the ends of backward passes, of those that are measured.
        measures: Whether backward passes are measured now: it takes some microseconds of each.
        thread: The thread that trains. Those of checkpoints wait for other ranks, too.
    """

    def __init__(self) -> None:
        self.calls = self.passes = 0.0
        self.measures = False
        self.thread = 0

    def add(self, seconds: float) -> None:
        """Add the time of a collective call."""
        if threading.get_ident() == self.thread:
            self.calls += seconds


WAITED = Waited()


def watch() -> None:
    """Time the waits of the calling thread from here on: PyTorch has no hook for them."""
    WAITED.thread = threading.get_ident()
    if not hasattr(torch.autograd.backward, "timed_by_torchtally"):
        torch.autograd.backward = _timed_backward(torch.autograd.backward)
        dist.Work.wait = _timed_wait(dist.Work.wait)  # type: ignore[method-assign]


def _timed_wait(of_work: Any) -> Any:
    @functools.wraps(of_work)
    def wait(*arguments: Any, **options: Any) -> Any:  # by the name that stacks show
        began = time.perf_counter()
        try:
            return of_work(*arguments, **options)
        finally:
            WAITED.add(time.perf_counter() - began)

    return wait


def _timed_backward(backward: Any) -> Any:
    @functools.wraps(backward)
    def timed(*arguments: Any, **options: Any) -> None:
        root = _root(arguments[0] if arguments else options.get("tensors")) if WAITED.measures else None
        if root is None:
            backward(*arguments, **options)
            return
        over: list[tuple[float, float]] = []  # when the gradients of this rank were computed, and its calls until then
        # What is queued first is called first: DDP's own wait is queued with the last gradient.
        hook = root.register_hook(
            lambda _: compat.after_backward(lambda: over.append((time.perf_counter(), WAITED.calls)))
        )
        try:
            backward(*arguments, **options)
        finally:
            hook.remove()
        if over:
            at, calls = over[0]
            WAITED.passes += max(0.0, time.perf_counter() - at - (WAITED.calls - calls))

    timed.timed_by_torchtally = True  # type: ignore[attr-defined]
    return timed


def _root(tensors: Any) -> Tensor | None:
    """A tensor at which a backward pass begins."""
    first = tensors[0] if isinstance(tensors, list | tuple) and tensors else tensors
    return first if isinstance(first, Tensor) and first.requires_grad else None
