"""The private names of torchmetrics that this package uses. Each may change with any release: see compat.py."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from torchmetrics import Metric

Reduction = Callable[[Tensor], Tensor] | None
# Attributes of an instance.
PRIVATE = ("_reductions", "_computed")


def with_state(metric: "Metric") -> list[Any]:
    """Return the metric and its nested ones, as far as they have states."""
    return [module for module in metric.modules() if hasattr(module, "_reductions")]


def reductions(module: Any) -> Iterator[tuple[str, Reduction]]:
    """Yield each state's name with the reduction that merges it over ranks."""
    yield from module._reductions.items()


def forget_value(module: Any) -> None:
    """Have the next compute() compute again, though no update came before it."""
    module._computed = None
