"""How samples divide over ranks where their number does not: free of numpy, so that --help is quick."""

from typing import Literal, get_args

# `exact`: each sample once; `padded`: some twice, so that all ranks have as many; `drop_last`: the last are left out.
Contract = Literal["exact", "padded", "drop_last"]
CONTRACTS: tuple[Contract, ...] = get_args(Contract)
