"""A loop of a user's own goes on from its newest whole checkpoint: every sample is in the weights once an epoch."""

from pathlib import Path

import counting
import pytest
from counting import EPOCHS, N

COMPLETE = [float(EPOCHS)] * N


@pytest.mark.parametrize("wrapped", ["plain", "ddp", "fsdp"])
def test_a_stopped_loop_goes_on_with_the_same_bits(wrapped: str, tmp_path: Path) -> None:
    world = 1 if wrapped == "plain" else 2
    expected = counting.run(world, counting.whole, tmp_path / "other", wrapped)
    assert expected[0].count == COMPLETE
    for commits in (1, 3, 9):
        for found in counting.run(world, counting.stopped_after, tmp_path / "here", commits, wrapped):
            assert (found.code, found.message) == (143, "stopped by signal 15, after a step and a checkpoint")
    for rank, found in enumerate(counting.run(world, counting.whole, tmp_path / "here", wrapped)):
        assert found.resumed
        assert found.count == COMPLETE
        assert (found.bits, found.lr) == (expected[rank].bits, expected[rank].lr)


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (3, 1)])
def test_another_number_of_ranks_goes_on_where_the_others_stood(before: int, after: int, tmp_path: Path) -> None:
    counting.run(before, counting.stopped_after, tmp_path, 2)
    for found in counting.run(after, counting.whole, tmp_path):
        assert found.resumed
        assert found.count == COMPLETE
