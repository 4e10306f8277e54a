"""The group of torchtally's own collectives lives as long as the program's."""

import gc
import weakref

import torch.distributed as dist

from torchtally.distributed import own_group


def test_nothing_keeps_the_group_once_the_program_has_destroyed_its_own() -> None:
    """Threads of a group that is left can abort Python at exit."""
    for _ in range(2):  # a program may make its groups anew
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            own = weakref.ref(own_group.of_all())
            gc.collect()
            assert own() is not None and own_group.of_all() is own()
            dist.barrier(own_group.of_all())
        finally:
            dist.destroy_process_group()
        gc.collect()
        assert own() is None
