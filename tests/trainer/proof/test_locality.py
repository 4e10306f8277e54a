"""The order locality-1: a permutation with an inverse under every contract, and few shard files open at a time."""

import math
import pickle
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtally.accounting.last_line import last_line
from torchtally.accounting.locality import Locality
from torchtally.accounting.progress import Progress
from torchtally.accounting.sampler import Sampler
from torchtally.accounting.state import PhaseState, State
from torchtally.accounting.tally import Run
from torchtally.errors import Refused, Unproven
from torchtally.proof import digest, permutation
from torchtally.proof.contract import CONTRACTS, Contract
from torchtally.proof.local_order import LocalOrder, UnknownSizes
from torchtally.proof.order import parse
from torchtally.proof.shard_sizes import STATED, ShardSizes, stated_runs
from torchtally.proof.shards import Shard

G = digest.base("run")
tables = st.lists(st.integers(0, 40), min_size=1, max_size=14).filter(any)
seeds = st.integers(0, 2**64 - 1)


@st.composite
def orders(draw: st.DrawFn) -> LocalOrder:
    lanes = draw(st.integers(1, 9) | st.just(500))
    return LocalOrder(draw(st.integers(1, 6)), lanes, ShardSizes.of(draw(tables)))


@settings(deadline=None)
@given(order=orders(), seed=seeds, epoch=st.integers(0, 10**6), data=st.data())
def test_the_order_is_a_permutation_and_has_an_inverse(
    order: LocalOrder, seed: int, epoch: int, data: st.DataObject
) -> None:
    n = order.sizes.total
    samples = order.samples_at(np.arange(n), seed, epoch)
    assert sorted(samples.tolist()) == [*range(n)]
    assert order.positions_of(samples, seed, epoch).tolist() == [*range(n)]
    some = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=30)), dtype=np.int64)
    assert np.array_equal(order.samples_at(some, seed, epoch), samples[some])


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(0, 1 << 50), min_size=1, max_size=50).filter(any),
    window=st.integers(1, 60),
    lanes=st.integers(1, 60),
    seed=seeds,
    data=st.data(),
)
def test_the_order_has_an_inverse_where_it_cannot_be_listed(
    sizes: list[int], window: int, lanes: int, seed: int, data: st.DataObject
) -> None:
    order, n = LocalOrder(window, lanes, ShardSizes.of(sizes)), sum(sizes)
    positions = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20)))
    samples = order.samples_at(positions, seed, 1)
    assert ((samples >= 0) & (samples < n)).all()
    assert np.array_equal(order.positions_of(samples, seed, 1), positions)


def all_ranks(order: LocalOrder, world: int, contract: Contract, start: int = 0, end: int | None = None) -> list[Shard]:
    n = order.sizes.total
    return [
        Shard(n=n, rank=rank, world=world, contract=contract, order=order, seed=4, epoch=2, start=start, end=end)
        for rank in range(world)
    ]


@settings(deadline=None)
@given(order=orders(), world=st.integers(1, 7), contract=st.sampled_from(CONTRACTS), data=st.data())
def test_the_ranks_share_the_samples_as_each_contract_says(
    order: LocalOrder, world: int, contract: Contract, data: st.DataObject
) -> None:
    n = order.sizes.total
    start = data.draw(st.integers(0, n - 1))
    ends = st.none() if n < 2 else st.integers(max(1, start), n - 1) | st.none()
    end = data.draw(ends)
    epoch = order.samples_at(np.arange(n), 4, 2).tolist()
    shards = all_ranks(order, world, contract, start, end)
    rest = epoch[start:end]
    rounds = {"exact": len(rest) / world, "padded": -(-len(rest) // world), "drop_last": len(rest) // world}
    left = len(rest) if end is not None else round(rounds[contract] * world)
    expected = [*rest, *(epoch * world)][:left]  # beyond the end, the order begins again
    found = [shard.indices().tolist() for shard in shards]
    assert found == [expected[rank::world] for rank in range(world)]
    everyone = Counter([*epoch[:start], *(sample for own in found for sample in own)])
    if contract == "exact" or end is not None:
        assert everyone == Counter(epoch[:end])
    sums = [sum(pow(sample + 1, k) * times for sample, times in everyone.items()) % digest.P for k in (1, 2, 3)]
    assert [*digest.of_all_ranks(shards[0], G).words[-3:]] == sums
    batch = data.draw(st.integers(1, 9))
    for shard, own in zip(shards, found, strict=True):
        batches = [shard.indices(at, at + batch) for at in range(0, len(own), batch)]
        assert [sample for some in batches for sample in some.tolist()] == own


def most_open(files: list[int]) -> int:
    """How many shard files are open at a time at most, each from its first sample to its last."""
    first = {file: at for at, file in reversed([*enumerate(files)])}
    last = {file: at for at, file in enumerate(files)}
    return max((sum(first[file] <= at <= last[file] for file in first) for at in range(len(files))), default=0)


@settings(deadline=None)
@given(order=orders(), world=st.integers(1, 7), data=st.data())
def test_no_lane_has_more_files_open_than_a_window_and_no_rank_more_lanes_than_it_must(
    order: LocalOrder, world: int, data: st.DataObject
) -> None:
    array = order.sizes.array
    assert array is not None
    file_of = np.repeat(np.arange(len(array)), array)
    start = data.draw(st.integers(0, order.sizes.total - 1))
    for shard in all_ranks(order, world, "exact", start):
        positions = shard.positions()
        files = file_of[shard.indices()]
        lanes = {*(positions % order.lanes).tolist()}
        assert len(lanes) <= order.lanes // math.gcd(order.lanes, world)
        for lane in lanes:
            assert most_open(files[positions % order.lanes == lane].tolist()) <= order.window


def test_a_rank_of_as_many_lanes_reads_files_of_its_own() -> None:
    """64 files over 4 ranks: each reads a quarter of them, which are whole but for those at the edges of the lanes."""
    order = LocalOrder(4, 4, ShardSizes.of([100] * 64))
    read = [{*(shard.indices() // 100).tolist()} for shard in all_ranks(order, 4, "exact")]
    assert [len(files) for files in read] == [16] * 4
    assert len(set.union(*read)) == 64


# The order is part of what a tally line promises: a change to any of these needs another name than locality-1.
@pytest.mark.parametrize(
    ("sizes", "window", "lanes", "seed", "epoch", "first", "last"),
    [
        (
            (4096,) * 15,
            *(4, 1, 0, 1),
            [44555, 28849, 32965, 38637, 43385, 33338, 37176],
            [17110, 7068, 17716],
        ),
        (
            (1024,) * 58 + (608,),
            *(8, 4, 1, 2),
            [43434, 42533, 49724, 17261, 17751, 25344, 49456],
            [19177, 47258, 13307],
        ),
        ((3, 0, 7, 1, 12, 5), *(2, 1, 0, 1), [27, 24, 23, 25, 26, 17, 21], [5, 2, 1]),
        ((3, 0, 7, 1, 12, 5), *(2, 3, 2**64 - 1, 10**6), [24, 27, 17, 9, 26, 20, 8], [11, 0, 25]),
        ((60000,), *(1, 1, 0, 1), [23656, 9868, 15110, 50836, 17605, 25154, 47240], [3188, 6797, 17604]),
        (
            (10**12, 3, 0, 10**13, 17 * 10**11),
            *(2, 2, 2**63 - 1, 3),
            [
                3097506253291,
                9137235010469,
                4120862613894,
                8494434602323,
                3688962130209,
                9360665838627,
                2881385759604,
            ],
            [2261372116864, 11621773147010, 1245770101937],
        ),
    ],
)
def test_the_order_is_frozen(
    sizes: tuple[int, ...], window: int, lanes: int, seed: int, epoch: int, first: list[int], last: list[int]
) -> None:
    order, n = LocalOrder(window, lanes, ShardSizes.of(sizes)), sum(sizes)
    assert order.samples_at(np.arange(7), seed, epoch).tolist() == first
    assert order.samples_at(np.arange(n - 3, n), seed, epoch).tolist() == last


def test_the_fingerprint_is_frozen() -> None:
    order = LocalOrder(8, 4, ShardSizes.of((3, 0, 7, 1, 12, 5)))
    assert str(order) == "locality-1 window=8 lanes=4 sizes=sha256:a9e0ce984557a12b"
    assert parse(str(order), order.sizes) == order


def test_epochs_seeds_and_windows_have_orders_of_their_own() -> None:
    """Independent orders of the 1000 samples of a window agree at about one position."""
    order = LocalOrder(10, 1, ShardSizes.of([100] * 100))

    def within(seed: int, epoch: int) -> list[np.ndarray]:
        samples = order.samples_at(np.arange(10_000), seed, epoch).reshape(10, 1000)
        return [np.argsort(np.argsort(window)) for window in samples]

    several = [*within(0, 1), *within(0, 2), *within(7, 1)]
    assert all((one == other).sum() < 10 for at, one in enumerate(several) for other in several[:at])


def test_samples_of_a_window_are_as_mixed_as_by_feistel() -> None:
    """One file in a window: the domain is that of feistel-1, of which the seed alone is another."""
    order = LocalOrder(1, 1, ShardSizes.of([5000]))
    mixed = permutation.splitmix64(permutation.splitmix64(np.array([6], dtype=np.uint64)))
    expected = permutation.permute(np.arange(5000), 5000, int(mixed[0]), 3)
    assert np.array_equal(order.samples_at(np.arange(5000), 6, 3), expected)


# The table.


@given(tables)
def test_runs_are_the_sizes_in_short(sizes: list[int]) -> None:
    known = ShardSizes.of(sizes)
    runs = [[*run] for run in known.runs]
    assert [size for count, size in runs for _ in range(count)] == sizes
    assert all(one[1] != other[1] for one, other in pairwise(runs))
    assert ShardSizes.of_runs(runs) == known
    assert known.total == sum(sizes)


@pytest.mark.parametrize(
    "runs", [None, [], {}, [1], [[1]], [[0, 5]], [[1, -1]], [[1, 5], [2, 5]], [[True, 5]], [[1, 2.0]], [[1 << 25, 1]]]
)
def test_what_are_no_runs_is_refused(runs: object) -> None:
    with pytest.raises(ValueError):
        ShardSizes.of_runs(runs)


def test_a_line_has_room_for_some_runs_and_always_for_their_fingerprint() -> None:
    most, more = (ShardSizes.of([*range(1, count + 1)]) for count in (STATED, STATED + 1))
    assert (len(stated_runs(most) or ()), stated_runs(more), stated_runs(None)) == (STATED, None, None)
    assert parse(str(LocalOrder(1, 1, more))) == LocalOrder(1, 1, more)


@pytest.mark.parametrize(
    "text",
    [
        "locality-1",
        "locality-2 window=8 lanes=1 sizes=sha256:a9e0ce984557a12b",
        "locality-1 window=0 lanes=1 sizes=sha256:a9e0ce984557a12b",
        "locality-1 window=08 lanes=1 sizes=sha256:a9e0ce984557a12b",
        "locality-1 window=8 lanes=1000001 sizes=sha256:a9e0ce984557a12b",
        "locality-1 window=8 lanes=1 sizes=sha256:a9e0ce984557a12b\n",
        "feistel-2",
    ],
)
def test_another_text_names_no_order(text: str) -> None:
    assert parse(text) is None


def test_without_the_sizes_no_sample_is_told() -> None:
    known = LocalOrder(2, 1, ShardSizes.of([4, 4]))
    unknown = parse(str(known))
    assert unknown == known and isinstance(unknown, LocalOrder)
    for how in (unknown.samples_at, unknown.positions_of):
        assert how(np.arange(0), 0, 1).tolist() == []
        with pytest.raises(UnknownSizes, match=known.sizes.fingerprint):
            how(np.arange(1), 0, 1)


def test_a_worker_that_is_spawned_has_the_order_too() -> None:
    sampler = Sampler(9, rank=0, world=1, order=Locality(sizes=[4, 5], window=1))
    sampler.set_epoch(3)
    copy = pickle.loads(pickle.dumps(sampler.order))
    assert [*sampler] == copy.samples_at(np.arange(9), 0, 3).tolist()


def test_a_state_that_has_the_fingerprint_alone_has_the_sizes_again_from_the_loader() -> None:
    order = LocalOrder(1, 1, ShardSizes.of([*range(1, STATED + 2)]))
    declared = PhaseState.beginning(n=order.sizes.total, contract="padded", order=order, data="numbers")
    before, after = Progress({"train": 1}), Progress({"train": 1})
    before.declare("train", declared.shared_out(0, 2))
    before.extents = {"train": (1, None)}
    run = Run(run="a", attempt=0, pod="p", task="t", plan={"train": 1}, rank=0, world=2, seed=0, data="numbers")
    text = before.state(run, {}).to_text()
    assert '"sizes"' not in text and order.sizes.fingerprint in text
    after.load(State.from_text(text))
    with pytest.raises(Refused, match="train: its loader or sampler must be made before the run ends"):
        last_line(run, after.phases, None, 0)
    after.declare("train", declared)
    with pytest.raises(Unproven):  # nothing is consumed yet
        last_line(run, after.phases, None, 0)
