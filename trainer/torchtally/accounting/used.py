"""Whether the weights can have what a commit counts: a backward pass has used each batch, and an optimizer has stepped.

A loop that has neither, as it updates its weights in another way, is not checked.
"""

import functools
import gc
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from torchtally import compat
from torchtally.checkpoints.objects import parameters_of


class Seen:
    """Backward passes and steps of optimizers, all of this process."""

    def __init__(self) -> None:
        self.passes = self.steps = 0
        self.empty = 0  # calls of step() that changed no weight
        self.committed = 0  # steps at the last commit of any phase
        self.captured = False  # in a CUDA graph, which calls nothing here when it is replayed
        self.stepped = 0  # number of the last backward pass before the last step
        self.lost = 0  # number of the last backward pass whose gradients were cleared before a step
        self._cleared: dict[int, int] = {}  # number of the last backward pass before a clear, by the parameter's id

    def add(self, passes: int = 0, empty: int = 0) -> None:
        self.passes += passes
        self.empty += empty
        self.captured |= captures()

    def step(self, optimizer: Optimizer) -> None:
        """Take note of a step that can change weights."""
        self.steps += 1
        self.stepped = self.passes
        self.captured |= captures()
        if self._cleared:
            self.lost = max([self.lost, *(self._cleared.pop(id(each), 0) for each in parameters_of(optimizer))])

    def clear(self, parameters: Iterable[Tensor]) -> None:
        """Take note that gradients are cleared. Those of backward passes without a step are in no weights."""
        if self.passes > self.stepped:
            self._cleared |= {id(each): self.passes for each in parameters if each.grad is not None}


SEEN = Seen()
_HAD_GRADIENTS: WeakSet[Optimizer] = WeakSet()


def has_gradients(optimizer: Optimizer) -> bool:
    """Whether a step has something to go by. An optimizer that is not PyTorch's and never had gradients needs none."""
    if any(each.grad is not None for each in parameters_of(optimizer)):
        _HAD_GRADIENTS.add(optimizer)
        return True
    return not _is_of_torch(optimizer) and optimizer not in _HAD_GRADIENTS


def _is_of_torch(optimizer: Optimizer) -> bool:
    """Whether it is one of PyTorch's own, or of a class that extends one."""
    kinds = (each for each in type(optimizer).__mro__ if each is not Optimizer)
    return any(each.__module__.startswith(("torch.optim.", "torch.distributed.optim.")) for each in kinds)


def _idle() -> Optimizer | None:
    """An optimizer that could step. A loop that updates its weights in another way has none."""
    optimizers = (each for each in gc.get_objects() if issubclass(type(each), Optimizer))
    return next((each for each in optimizers if any(of.grad is not None for of in parameters_of(each))), None)


def is_left_out(optimizer: Optimizer) -> bool:
    """Whether the step of a fused optimizer was none: a GradScaler tells it that gradients overflow."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and not captures() and bool(found)


def watch() -> None:
    """Watch what PyTorch has no hook for: backward passes, and what clears their gradients.

    A pass that fails is none, and neither is one within another, as activation checkpoints make them.
    """
    backward = torch.autograd.backward
    if hasattr(backward, "counted_by_torchtally"):
        return
    Optimizer.zero_grad = _noting(Optimizer.zero_grad, parameters_of)  # type: ignore[method-assign]
    nn.Module.zero_grad = _noting(nn.Module.zero_grad, nn.Module.parameters)  # type: ignore[method-assign]

    @functools.wraps(backward)
    def counted(*arguments: Any, **options: Any) -> None:
        within = compat.in_backward()
        backward(*arguments, **options)
        SEEN.add(passes=not within)

    counted.counted_by_torchtally = True  # type: ignore[attr-defined]
    torch.autograd.backward = counted


def _noting(zero_grad: Callable[..., None], parameters: Callable[[Any], Iterable[Tensor]]) -> Callable[..., None]:
    @functools.wraps(zero_grad)
    def noted(owner: Any, *arguments: Any, **options: Any) -> None:
        SEEN.clear(parameters(owner))
        zero_grad(owner, *arguments, **options)

    return noted


def captures() -> bool:
    """Whether a CUDA graph is being captured, in which no value can be read."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


class Used:
    """What a loop did between the commits of one phase."""

    def __init__(self) -> None:
        watch()
        self._passes, self._steps = SEEN.passes, SEEN.steps  # before the batches that the next commit covers
        self._empty = SEEN.empty
        self._before_last = SEEN.passes  # before the batch that was handed out last
        self._skipped: int | None = None  # backward passes before this batch was skipped
        self._passing = False  # whether there was a backward pass before any commit
        self._stepping: bool | None = None  # whether there was a step before each commit

    def begin(self) -> None:
        """Forget what came before a batch that is handed out when no other waits for a commit.

        The backward passes of skipped batches speak for no other batch, and neither do the passes and steps of another
        phase. A step that no phase has committed is kept: it shows a loop that commits before it steps.
        """
        self._passes, self._steps = SEEN.passes, max(self._steps, SEEN.committed)
        self._empty = SEEN.empty

    def hand_out(self) -> None:
        """Take note of a batch that is handed out."""
        self._before_last, self._skipped = SEEN.passes, None

    def skip(self) -> None:
        """Take note that the batch that was handed out last is skipped."""
        self._skipped = SEEN.passes

    @property
    def passed_after_skip(self) -> bool:
        """Whether there was a backward pass after that."""
        return self._skipped is not None and SEEN.passes > self._skipped

    @property
    def last_passed(self) -> bool:
        """Whether there was a backward pass since the last batch was handed out."""
        return SEEN.passes > self._before_last

    @property
    def passes(self) -> int:
        """Backward passes since the batches that the next commit covers."""
        return SEEN.passes - self._passes

    @property
    def kept(self) -> int:
        """Those of them whose gradients were not cleared before a step."""
        return SEEN.passes - max(self._passes, SEEN.lost)

    def problem(self, batches: int, named: int) -> str | None:
        """Take note of a commit. Returns why it cannot count so many batches with samples, of which some are named."""
        passes, cleared = self.kept, self.passes - self.kept
        stepped, empty = SEEN.steps > self._steps, SEEN.empty > self._empty
        self._passes, self._empty = SEEN.passes, SEEN.empty
        self._steps = SEEN.committed = SEEN.steps
        if not batches or SEEN.captured:
            return None
        self._passing |= passes + cleared > 0
        if self._passing and passes < batches and named < batches:
            count = f"{passes or 'no'} backward pass{'es' * (passes != 1)}"
            if cleared:
                count += f", and {cleared} whose gradients were cleared before the step"
            return (
                f"commit() covers {batches} batch{'es' * (batches > 1)} after {count}: a loop that leaves out a batch "
                "must call skip(reason), one that fetches ahead must pass its batch, commit(batch), and one with a "
                "single pass for several must name them all"
            )
        if empty and not stepped:
            return (
                "optimizer.step() has changed no weight since the last commit, as no parameter has a gradient or a "
                "GradScaler leaves out the step: call optimizer.zero_grad() after commit(), and skip(reason) in place "
                "of step() and commit() for a batch that is left out"
            )
        before, self._stepping = self._stepping, stepped
        if before is None and not stepped and (idle := _idle()):
            return (
                f"the optimizer {type(idle).__name__} has parameters with gradients and has not stepped: call commit() "
                "after optimizer.step()"
            )
        if before in (None, stepped):
            return None
        late = "commits came before the first step of an optimizer"
        never = "no optimizer has stepped since the last commit"
        return (
            f"{late if stepped else never}: call commit() after each optimizer.step(), and skip(reason) in place of "
            "both where a GradScaler leaves out the step"
        )
