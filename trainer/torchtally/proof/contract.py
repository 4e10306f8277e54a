"""How samples divide over ranks where their number does not: free of numpy, so that --help is quick."""

from typing import Literal, get_args

# `exact`: each sample once; `padded`: some twice, so that all ranks have as many; `drop_last`: the last are left out.
OfPositions = Literal["exact", "padded", "drop_last"]
# `as_drawn`: each sample as often as the program's own sampler has drawn it.
OfDraws = Literal["exact", "as_drawn"]
Contract = OfPositions | OfDraws
CONTRACTS: tuple[OfPositions, ...] = get_args(OfPositions)  # of an order that is computed
OF_DRAWS: tuple[OfDraws, ...] = get_args(OfDraws)  # of one that is drawn
