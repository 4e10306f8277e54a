"""Fused AdamW for parameters that are channels last."""

from typing import Any

import torch
from torch import Tensor


class AdamW(torch.optim.AdamW):
    """PyTorch's fused AdamW, to the bit, without a copy of each gradient that is channels last.

    On CPUs, PyTorch's kernel first makes each gradient contiguous, which takes longer than the step itself. Here the
    kernel has views, whose dimensions are in the order of memory: they are contiguous already.
    """

    def __init__(self, parameters: Any, **options: Any):
        super().__init__(parameters, fused=True, **options)

    def _init_group(self, group: dict[str, Any], *lists: list[Tensor]) -> bool:
        """Fill the lists: parameters, gradients, both averages, largest averages (here none), and steps."""
        is_complex: bool = super()._init_group(group, *lists)  # type: ignore[no-untyped-call]  # see compat.py
        elements = lists[:4]
        for at, tensors in enumerate(zip(*elements, strict=True)):
            # All or none: the kernel takes the elements by their place in memory.
            if all(each.is_contiguous(memory_format=torch.channels_last) for each in tensors):
                for filled, each in zip(elements, tensors, strict=True):
                    filled[at] = each.permute(0, 2, 3, 1)
        return is_complex
