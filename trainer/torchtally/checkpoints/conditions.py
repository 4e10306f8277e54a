"""The conditions of a training: what a checkpoint must share, and what ranks must share to have equal weights."""

import json
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from torchtally import exchange


def alike(device: torch.device, group: dist.ProcessGroup | None = None) -> bool:
    """Whether all ranks compute under the same conditions; rank 0 alone knows. A collective call."""
    found = exchange.gather(of_this_rank(device), group) or []
    return all(each == found[0] for each in found)


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
