"""The conditions under which ranks have equal weights, and whether they have."""

import hashlib
import zlib
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from torchtally import exchange


def unequal(values: Mapping[str, Tensor], device: torch.device, group: dist.ProcessGroup) -> str | None:
    """Say which of these tensors, that are not sharded, differs between ranks; None if none does. A collective call."""
    found = different({name: _sum(value) for name, value in values.items()}, device, group)
    return found and (
        f"checkpoints: ranks 0 and {found[0]} have different values of {found[1]}, and a checkpoint holds those of "
        "only one: average the gradients over all ranks in each step, as DistributedDataParallel does"
    )


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


def _sum(value: Tensor) -> int | None:
    """A checksum of the values; None if each rank saves its own part."""
    if type(value) is not Tensor:
        return None
    return zlib.crc32(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def of_this_rank(device: torch.device) -> dict[str, Any]:
    """The conditions of a rank, beside the number of ranks, under which the weights are equal bit for bit."""
    return {
        "PyTorch": str(torch.__version__),  # a class of its own, which a checkpoint may not hold
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
    }
