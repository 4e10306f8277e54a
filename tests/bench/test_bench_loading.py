"""What is measured of loaders is what both of them load: the same samples, in batches of the same size."""

import pytest
from torch import Tensor
from torch.utils.data import DataLoader

from bench.measure.loading import BATCHES, FETCHED
from torchtally import each_row
from torchtally.accounting.loader import Loader
from torchtally.accounting.sampler import Sampler


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("fetched", FETCHED)
def test_both_loaders_make_the_same_batches(fetched: str, batch: int) -> None:
    kind, collate = FETCHED[fetched]
    dataset = kind(1000)
    plain: list[Tensor] = list(DataLoader(dataset, batch, collate_fn=collate))
    sampler = Sampler(1000, batch_size=batch, shuffle=False, rank=0, world=1)
    ours = [each.data for each in Loader(dataset, sampler, collate and each_row(collate))]
    assert [each.tolist() for each in ours] == [each.tolist() for each in plain]
