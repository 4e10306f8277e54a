"""What is measured of an order follows from the files of its samples."""

import numpy as np
import pytest

from bench.measure import locality


def test_ranks_that_read_their_own_files_in_turn_have_one_open_and_read_each_once() -> None:
    found = locality.found(locality.in_parts(np.arange(locality.N)))
    assert found.open == 1
    assert 1 < found.read < 1.01  # but for a file at the edge of each rank's part
    assert found.distance < 0.1  # two neighbors are in one step, or in two that follow each other
    assert found.files < 2 * locality.WORLD


def test_ranks_that_take_turns_read_each_file_once_each() -> None:
    found = locality.found(locality.in_turn(np.arange(locality.N)))
    assert (found.open, found.read) == (1, locality.WORLD)


@pytest.mark.parametrize("name", [name for name in locality.ORDERS if not name.startswith("Streaming")])
def test_every_rank_has_its_samples(name: str) -> None:
    ranks = locality.ORDERS[name](0)
    assert ranks.shape == (locality.WORLD, locality.N // locality.WORLD // locality.BATCH, locality.BATCH)
    assert np.array_equal(np.sort(ranks.ravel()), np.arange(locality.N))
