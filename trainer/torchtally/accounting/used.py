"""Whether the weights can have what a commit counts: a backward pass has used each batch, and an optimizer has stepped.

A loop that has neither, as it updates its weights in another way, is not checked.
"""

import functools
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from torchtally import compat


class Seen:
    """Backward passes and steps of optimizers, all of this process."""

    def __init__(self) -> None:
        self.passes = self.steps = 0
        self.empty = 0  # calls of step() that changed no weight
        self.committed = 0  # steps at the last commit of any phase
        self.captured = False  # in a CUDA graph, which calls nothing here when it is replayed

    def add(self, passes: int = 0, steps: int = 0, empty: int = 0) -> None:
        self.passes += passes
        self.steps += steps
        self.empty += empty
        self.captured |= _captures()


SEEN = Seen()


def has_gradients(optimizer: Optimizer) -> bool:
    """Whether a step has something to go by. A step that is not PyTorch's own may need no gradients."""
    if not type(optimizer).step.__module__.startswith("torch.optim."):
        return True
    return any(each.grad is not None for group in optimizer.param_groups for each in group["params"])


def is_left_out(optimizer: Optimizer) -> bool:
    """Whether the step of a fused optimizer was none: a GradScaler tells it that gradients overflow."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and not _captures() and bool(found)


def watch() -> None:
    """Count the backward passes of `Tensor.backward` and `torch.autograd.backward`, for which PyTorch has no hook.

    One that fails is none, and neither is one within another, as activation checkpoints make them.
    """
    backward = torch.autograd.backward
    if hasattr(backward, "counted_by_torchtally"):
        return

    @functools.wraps(backward)
    def counted(*arguments: Any, **options: Any) -> None:
        within = compat.in_backward()
        backward(*arguments, **options)
        SEEN.add(passes=not within)

    counted.counted_by_torchtally = True  # type: ignore[attr-defined]
    torch.autograd.backward = counted


def _captures() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


class Used:
    """What a loop did between the commits of one phase."""

    def __init__(self) -> None:
        watch()
        self._passes, self._steps = SEEN.passes, SEEN.steps  # before the batches that the next commit covers
        self._empty = SEEN.empty
        self._before_last = SEEN.passes  # before the batch that was handed out last
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
        self._before_last = SEEN.passes

    @property
    def last_passed(self) -> bool:
        """Whether there was a backward pass since the last batch was handed out."""
        return SEEN.passes > self._before_last

    @property
    def passes(self) -> int:
        """Backward passes since the batches that the next commit covers."""
        return SEEN.passes - self._passes

    def problem(self, batches: int, named: int) -> str | None:
        """Take note of a commit. Returns why it cannot count so many batches with samples, of which some are named."""
        passes, stepped, empty = self.passes, SEEN.steps > self._steps, SEEN.empty > self._empty
        self._passes, self._empty = SEEN.passes, SEEN.empty
        self._steps = SEEN.committed = SEEN.steps
        if not batches or SEEN.captured:
            return None
        self._passing |= passes > 0
        if self._passing and passes < batches and named < batches:
            return (
                f"commit() covers {batches} batch{'es' * (batches > 1)} after {passes or 'no'} backward "
                f"pass{'es' * (passes != 1)}: a loop that leaves out a batch must call skip(reason), one that fetches "
                "ahead must pass its batch, commit(batch), and one with a single pass for several must name them all"
            )
        if empty and not stepped:
            return (
                "optimizer.step() has changed no weight since the last commit, as no parameter has a gradient or a "
                "GradScaler leaves out the step: call optimizer.zero_grad() after commit(), and skip(reason) in place "
                "of step() and commit() for a batch that is left out"
            )
        before, self._stepping = self._stepping, stepped
        if before in (None, stepped):
            return None
        late = "commits came before the first step of an optimizer"
        never = "no optimizer has stepped since the last commit"
        return (
            f"{late if stepped else never}: call commit() after each optimizer.step(), and skip(reason) in place of "
            "both where a GradScaler leaves out the step"
        )
