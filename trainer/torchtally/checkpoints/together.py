"""What some rank does and all ranks learn of."""

from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import torch.distributed as dist

T = TypeVar("T")


def new_group(timeout: timedelta | None = None) -> dist.ProcessGroup:
    """Make a gloo group of all ranks, for the calls of one thread."""
    group = dist.new_group(backend="gloo", timeout=timeout)
    assert isinstance(group, dist.ProcessGroup)
    return group


def on_all(group: dist.ProcessGroup, function: Callable[[], T]) -> list[T]:
    """Call `function` on every rank; returns what all returned. Every rank raises the first rank's error."""
    outcome: tuple[T | None, Exception | None]
    try:
        outcome = function(), None
    except Exception as error:  # the other ranks wait
        outcome = None, error
    outcomes = [outcome] * dist.get_world_size(group)
    dist.all_gather_object(outcomes, outcome, group)
    results = []
    for result, raised in outcomes:
        if raised is not None:
            raise raised
        results.append(result)
    return results  # type: ignore[return-value]  # None is there with an error only


def on_rank_0(group: dist.ProcessGroup, function: Callable[[], T]) -> T:
    """Call `function` on rank 0; every rank returns what it returned, or raises its error."""
    return on_all(group, lambda: function() if dist.get_rank() == 0 else None)[0]  # type: ignore[return-value]
