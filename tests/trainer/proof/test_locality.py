"""The order locality-1: a permutation with an inverse under every contract, and few shard files open at a time."""

import math
import pickle
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtally.accounting.ledger.state import PhaseState, State
from torchtally.accounting.ledger.tally import Run
from torchtally.accounting.order.locality import Locality
from torchtally.accounting.order.sampler import Sampler
from torchtally.accounting.proofs.last_line import check, summary_of
from torchtally.accounting.run.progress import Progress
from torchtally.errors import Refused, Unproven
from torchtally.proof import digest
from torchtally.proof.contract import Contract
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


def all_ranks(order: LocalOrder, world: int, contract: Contract, start: int = 0, end: int | None = None) -> list[Shard]:
    n = order.sizes.total
    return [
        Shard(n=n, rank=rank, world=world, contract=contract, order=order, seed=4, epoch=2, start=start, end=end)
        for rank in range(world)
    ]


def most_open(files: list[int]) -> int:
    """How many shard files are open at a time at most, each from its first sample to its last."""
    first = {file: at for at, file in reversed([*enumerate(files)])}
    last = {file: at for at, file in enumerate(files)}
    return max((sum(first[file] <= at <= last[file] for file in first) for at in range(len(files))), default=0)


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


# The order is part of what a tally line promises: a change to any of these needs another name than locality-1.
@pytest.mark.parametrize(
    ("sizes", "window", "lanes", "seed", "epoch", "first", "last"),
    [
        ((4096,) * 15, *(4, 1, 0, 1), [44555, 28849, 32965, 38637, 43385, 33338, 37176], [17110, 7068, 17716]),
        ((3, 0, 7, 1, 12, 5), *(2, 3, 2**64 - 1, 10**6), [24, 27, 17, 9, 26, 20, 8], [11, 0, 25]),
        (
            (10**12, 3, 0, 10**13, 17 * 10**11),
            *(2, 2, 2**63 - 1, 3),
            [3097506253291, 9137235010469, 4120862613894, 8494434602323, 3688962130209, 9360665838627, 2881385759604],
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
    before.declare("train", declared.shared_out(1, 0, 2))
    before.extents = {"train": (1, None)}
    run = Run(run="a", attempt=0, pod="p", task="t", plan={"train": 1}, rank=0, world=2, seed=0, data="numbers")
    text = before.state(run, {}).to_text()
    assert '"sizes":null' in text and order.sizes.fingerprint in text
    after.load(State.from_text(text))
    with pytest.raises(Refused, match="train: its loader or sampler must be made before the run ends"):
        check(summary_of(run, after.phases, None, (), 0))
    after.declare("train", declared)
    with pytest.raises(Unproven):  # nothing is consumed yet
        check(summary_of(run, after.phases, None, (), 0))
