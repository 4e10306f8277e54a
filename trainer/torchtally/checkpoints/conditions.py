"""The conditions of a training: those that a checkpoint must share, and those that change the last bits alone."""

import json
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from torchtally import exchange
from torchtally.log import log


def of_all_ranks(device: torch.device, group: dist.ProcessGroup | None = None) -> list[dict[str, Any]]:
    """The conditions of each rank, on rank 0. A collective call."""
    return exchange.gather(of_this_rank(device), group) or []


def of_this_rank(device: torch.device) -> dict[str, Any]:
    """The conditions of a rank, beside the number of ranks, under which the weights are equal bit for bit."""
    return {
        "PyTorch": str(torch.__version__),  # a class of its own, which a checkpoint may not hold
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
    }


def refusal(
    path: object, saved: Mapping[str, Any], facts: Mapping[str, Any], option: str, grows: str | None = None
) -> str | None:
    """Why a checkpoint in the place that `option` names is not of the training with these facts, or None.

    `grows` names a fact, a number, that may be greater than it was.
    """
    for name, value in facts.items():
        if saved.get(name) != value and not (name == grows and type(saved.get(name)) is int and saved[name] < value):
            return (
                f"the checkpoint {path} is of another training: its {name} is {json.dumps(saved.get(name))} and now it "
                f"is {json.dumps(value)}; go on as before, or choose another {option}"
            )
    return None


def warn_of_differences(path: object, before: list[dict[str, Any]], now: list[dict[str, Any]]) -> None:
    """Print a warning for differences that change the last bits of the weights."""
    others: dict[str, list[int]] = {}  # each difference, and its ranks
    if len(before) != len(now):
        others[f"{len(before)} ranks and now {len(now)}"] = []
    for rank, (was, here) in enumerate(zip(before, now, strict=False)):
        for name, value in here.items():
            if was.get(name) != value:
                others.setdefault(f"{name} {was.get(name)} and now {value}", []).append(rank)
    if others:
        told = ", ".join(text + _of_some(ranks, len(now)) for text, ranks in others.items())
        log.warning(f"{path} was made with {told}: every sample counts once, but the last bits will differ")


def _of_some(ranks: list[int], world: int) -> str:
    if len(ranks) in (0, world):
        return ""
    return f" (ranks {', '.join(map(str, ranks[:8]))}{', …' * (len(ranks) > 8)})"
