"""The orders of an epoch, as a line names them: each is a permutation of [0, n) that is computed, not stored.

Except `drawn`, the order of the program's own sampler: nobody else can compute it, so the positions are the indices.
"""

from functools import lru_cache
from typing import Literal, get_args

from torchtally.proof.local_order import LocalOrder
from torchtally.proof.shard_sizes import ShardSizes

_Plain = Literal["feistel-1", "sequential", "drawn"]
Order = _Plain | LocalOrder
PLAIN: tuple[_Plain, ...] = get_args(_Plain)
DRAWN: Literal["drawn"] = "drawn"


@lru_cache(maxsize=64)
def parse(text: str, sizes: ShardSizes | None = None) -> Order | None:
    """The order that a text names, or None. Sizes that it does not name are left out."""
    return next((plain for plain in PLAIN if plain == text), None) or LocalOrder.parse(text, sizes)


def sizes_of(order: Order) -> ShardSizes | None:
    """The sizes of the shard files that an order names, if it does."""
    return order.sizes if isinstance(order, LocalOrder) else None
