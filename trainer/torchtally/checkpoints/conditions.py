"""The conditions of a training: what a checkpoint must share, and what ranks must share to have equal weights."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from torchtally import exchange


def different(sums: Mapping[str, int | None], device: torch.device, group: dist.ProcessGroup) -> tuple[int, str] | None:
    """A rank whose values differ from rank 0's, and the first that does, by their checksums. A collective call.

    Ranks under other conditions than rank 0 are not compared: their last bits can differ. The checksums of all values
    travel only if something differs.
    """
    digest = hashlib.sha256(repr(sorted(sums.items())).encode()).hexdigest()
    first, *others = exchange.all_gather([of_this_rank(device), digest], group)
    compared = [rank for rank, each in enumerate(others, 1) if each[0] == first[0] and each != first]
    if not compared:
        return None
    whole = exchange.all_gather(dict(sums), group)
    for rank in compared:
        for name in sorted(whole[0].keys() & whole[rank].keys()):
            if whole[0][name] != whole[rank][name]:
                return rank, name
    return None


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
