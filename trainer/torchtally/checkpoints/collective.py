"""What some rank does and all ranks learn of."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from torchtally import exchange
from torchtally.distributed import own_group
from torchtally.errors import Refused, Volume

# The errors that keep their type on the other ranks. Any other one becomes a RuntimeError there.
_KNOWN: dict[str, type[Exception]] = {each.__name__: each for each in (Refused, Volume, OSError)}


def new_group(timeout: timedelta | None = None) -> Callable[[], dist.ProcessGroup]:
    """Make a gloo group of all ranks, for the calls of one thread. Returns a function that returns the group."""
    group = dist.new_group(backend="gloo", timeout=timeout)
    assert isinstance(group, dist.ProcessGroup)
    return own_group.unkept(group)


def on_all(group: dist.ProcessGroup, function: Callable[[], Any]) -> list[Any]:
    """Call `function` on every rank; returns what all returned, as JSON. Every rank raises the first rank's error."""
    result, own = None, None
    try:
        result = function()
    except Exception as error:  # the other ranks wait
        own = error
    outcomes = exchange.all_gather([result, own and _told(own)], group)
    for rank, (_, raised) in enumerate(outcomes):
        if raised is not None:
            if own is not None and rank == dist.get_rank(group):
                raise own
            kind, text = raised
            raise _KNOWN.get(kind, RuntimeError)(text)
    return [each for each, _ in outcomes]


def on_rank_0(group: dist.ProcessGroup, function: Callable[[], Any]) -> Any:
    """Call `function` on rank 0; every rank returns what it returned, as JSON, or raises its error."""
    return on_all(group, lambda: function() if dist.get_rank() == 0 else None)[0]


def _told(error: Exception) -> tuple[str, str]:
    kind = next((name for name, known in _KNOWN.items() if isinstance(error, known)), None)
    return (kind, str(error)) if kind else (RuntimeError.__name__, f"{type(error).__name__}: {error}")
