"""Distributed PyTorch on Kubernetes that accounts for every sample."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchtally.accounting.account import Account as Account
    from torchtally.accounting.batches.collate import Batch as Batch
    from torchtally.accounting.batches.collate import each_row as each_row
    from torchtally.accounting.data.mixture import Mixture as Mixture
    from torchtally.accounting.data.packed import Packed as Packed
    from torchtally.accounting.evaluation import evaluate as evaluate
    from torchtally.accounting.evaluation import gather_predictions as gather_predictions
    from torchtally.accounting.order.locality import Locality as Locality
    from torchtally.accounting.order.plan import Every as Every
    from torchtally.accounting.order.plan import Steps as Steps
    from torchtally.accounting.order.plan import Tokens as Tokens
    from torchtally.errors import Refused as Refused
    from torchtally.errors import Unproven as Unproven
    from torchtally.pod.failure import exit_codes as exit_codes

_EXPORTS = {
    "Account": "torchtally.accounting.account",
    "Batch": "torchtally.accounting.batches.collate",
    "Every": "torchtally.accounting.order.plan",
    "Locality": "torchtally.accounting.order.locality",
    "Mixture": "torchtally.accounting.data.mixture",
    "Packed": "torchtally.accounting.data.packed",
    "Refused": "torchtally.errors",
    "Steps": "torchtally.accounting.order.plan",
    "Tokens": "torchtally.accounting.order.plan",
    "Unproven": "torchtally.errors",
    "each_row": "torchtally.accounting.batches.collate",
    "evaluate": "torchtally.accounting.evaluation",
    "exit_codes": "torchtally.pod.failure",
    "gather_predictions": "torchtally.accounting.evaluation",
}
__all__ = [
    "Account",
    "Batch",
    "Every",
    "Locality",
    "Mixture",
    "Packed",
    "Refused",
    "Steps",
    "Tokens",
    "Unproven",
    "each_row",
    "evaluate",
    "exit_codes",
    "gather_predictions",
]


def __getattr__(name: str) -> Any:
    """Import an export where it is first used: they need torch, which `torchtally --help` does without."""
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_EXPORTS[name]), name)
    except ModuleNotFoundError as error:
        needs = f"torchtally.{name} needs the Python package {error.name}: install torchtally with its extra `train`"
        raise ModuleNotFoundError(needs, name=error.name) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
