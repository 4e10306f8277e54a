"""Whether parameters that an optimizer steps are copies of what is saved, as those of a higher precision are."""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


def are_copies(stepped: Iterable[Tensor], saved: Iterable[Tensor]) -> bool:
    """Whether each of the tensors that are stepped has the values of one of its own that is saved."""
    known = defaultdict(list)
    for each in saved:
        known[each.shape].append(each)
    return all(_take_equal(known[each.shape], each) for each in stepped)


def _take_equal(known: list[Tensor], sought: Tensor) -> bool:
    """Whether a known tensor has the values that are sought. It is taken out: copies are mostly in the same order."""
    for at, each in enumerate(known):
        if _equal(each, sought):
            del known[at]
            return True
    return False


def _equal(saved: Tensor, stepped: Tensor) -> bool:
    """Whether these are equal as far as the precision of `saved` allows, with any rounding."""
    saved, stepped = (each.to_local() if isinstance(each, DTensor) else each for each in (saved.detach(), stepped))
    own = stepped.detach().to(saved.device, saved.dtype)
    if saved.shape != own.shape:
        return False
    if saved.dtype == stepped.dtype or not saved.is_floating_point():
        return torch.equal(own, saved)
    limits = torch.finfo(saved.dtype)
    return torch.allclose(own, saved, rtol=2 * limits.eps, atol=limits.tiny, equal_nan=True)
