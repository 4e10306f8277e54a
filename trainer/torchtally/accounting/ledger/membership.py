"""Which ranks share a dataset, and the process group of their tallies."""

from dataclasses import dataclass
from typing import Self

import torch.distributed as dist

from torchtally.distributed import own_group


@dataclass(frozen=True, kw_only=True)
class Membership:
    """A process's place among the ranks that share the samples.

    Ranks of a tensor-, pipeline- or context-parallel group receive the same samples: they are peers. One of them, in
    the data-parallel group of global rank 0, prints for all.
    """

    rank: int  # among the ranks that share the samples
    world: int  # number of those
    leads: bool  # whether this process prints for its peers
    first: int  # global rank of the first of those
    everyone: dist.ProcessGroup  # of all processes, over gloo

    @classmethod
    def of(cls, group: dist.ProcessGroup | None) -> Self:
        """The place in `group` (default: of all processes). A collective call of all processes."""
        ranks = dist.get_process_group_ranks(group)
        return cls(
            rank=dist.get_rank(group),
            world=len(ranks),
            leads=0 in ranks,
            first=min(ranks),
            everyone=own_group.of_all(),
        )
