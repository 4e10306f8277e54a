"""What several ranks find together is what one process finds alone, however n divides: sums, metrics, predictions."""

import math
from collections.abc import Iterable, Iterator
from typing import Any
from unittest import mock

import pytest
import ranks
import torch
import torch.distributed as dist
import toy
from torch import Tensor, nn
from torch.distributed.distributed_c10d import Store
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torchmetrics import Metric, MetricCollection, PearsonCorrCoef, SpearmanCorrCoef
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC, MulticlassF1Score

from torchtally.accounting import evaluation as evaluating
from torchtally.accounting.evaluation import CLASSIFICATION, Evaluation, compute, evaluate, gather_predictions
from torchtally.accounting.ledger.tally import Phase, Tally
from torchtally.accounting.proofs.proving import prove
from torchtally.options import Training

DTYPES = (torch.float32, torch.bfloat16, torch.bool, torch.int16, torch.complex64)


class Spearman(SpearmanCorrCoef):
    def update(self, outputs: Tensor, labels: Tensor) -> None:
        super().update(outputs[:, 1].float(), outputs[:, 0].float() + labels)


class Pearson(PearsonCorrCoef):
    """Its states are merged by a formula of its own."""

    def update(self, outputs: Tensor, labels: Tensor) -> None:
        super().update(outputs[:, 1].float(), outputs[:, 0].float() + labels)


class Outputs(Metric):
    """A list of one entry a batch that torchmetrics leaves as it is: ranks have unequal numbers of them."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor]
        self.add_state("seen", [], dist_reduce_fx=None)

    def update(self, outputs: Tensor, labels: Tensor) -> None:
        self.seen.append(outputs[:, 0])

    def compute(self) -> Tensor:
        return torch.cat(self.seen).sort().values


class Average(Metric):
    """A state that is averaged over ranks: `constant` or not, and only then exact."""

    def __init__(self, constant: bool) -> None:
        super().__init__()
        self.constant = constant
        self.value: Tensor
        self.add_state("value", torch.tensor(0.0), dist_reduce_fx="mean")

    def update(self, outputs: Tensor, labels: Tensor) -> None:
        self.value = torch.tensor(3.0) if self.constant else outputs.mean().float()

    def compute(self) -> Tensor:
        return self.value


def metrics() -> dict[str, Metric]:
    accuracy = MulticlassAccuracy(num_classes=2, average="micro")
    return {
        "sum": accuracy,
        "cat": MulticlassAUROC(num_classes=2),
        "ranked": Spearman(),
        "formula": Pearson(),
        "list": Outputs(),
        "nested": 100 * MulticlassF1Score(num_classes=2),
        "constant": Average(constant=True),
    }


def model_of(rank: int) -> nn.Module:
    """Equal weights on every rank; statistics of its own, as after the last step of a training."""
    torch.manual_seed(3)
    normed = nn.BatchNorm1d(8, dtype=torch.float64)
    assert normed.running_mean is not None
    normed.running_mean += 0.5 * rank
    model = nn.Sequential(nn.Linear(4, 8, dtype=torch.float64), normed, nn.ReLU(), nn.Dropout())
    model.append(nn.Linear(8, 2, dtype=torch.float64))
    return model


def phase(n: int) -> Phase:
    return Phase(name="test", epoch=1, n=n, batch=8, contract="exact", order="sequential")


def together(rank: int, world: int, store: Store, ns: list[int]) -> list[Any]:
    """Evaluate with batches of other sizes on each rank, some of them empty."""
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    model = model_of(rank)
    parallel = DistributedDataParallel(model, init_sync=False)
    model[1].eval()  # as one freezes it
    modes = [module.training for module in parallel.modules()]
    found = []
    ours = metrics()
    ours["sum"].update(torch.tensor([[0.9, 0.1]]), torch.tensor([1]))  # each evaluation begins anew
    for n in ns:
        samples = toy.samples(n, 2, torch.float64)
        own = torch.arange(n)[rank::world]
        batches = [own[:0], *own.split(2 + rank), own[:0]] if len(own) else []
        tally = Tally(toy.run(rank, world, Training()), phase(n))
        result = evaluate(
            parallel,
            taken(reversed(batches), samples, tally),
            n,
            sums={**CLASSIFICATION, "tenths": tenths},
            metrics=ours,
            keep=lambda outputs: outputs,
        )
        assert result.kept is not None
        rows = gather_predictions(result.kept, n)
        assert [module.training for module in parallel.modules()] == modes
        found.append((*plain(result), prove(tally).holds, None if rows is None else rows.tolist()))
    return found


def taken(batches: Iterable[Tensor], samples: toy.Samples, tally: Tally) -> Iterator[Any]:
    for batch in batches:
        yield batch, (samples.inputs[batch], samples.labels[batch])
        tally.record(batch.numpy())


def tenths(outputs: Tensor, labels: Tensor) -> Tensor:
    """What float32 cannot add up."""
    return torch.full((len(labels),), 0.1)


def plain(result: Evaluation) -> tuple[int, dict[str, float], dict[str, Any]]:
    return result.count, result.totals, {name: value.tolist() for name, value in result.metrics.items()}


def alone(n: int) -> tuple[int, dict[str, float], dict[str, Any], list[list[float]]]:
    """The same without any of the package's code."""
    samples = toy.samples(n, 2, torch.float64)
    with torch.no_grad():
        outputs = model_of(0).eval()(samples.inputs)
    values = {}
    for name, metric in metrics().items():
        metric.update(outputs, samples.labels)
        values[name] = metric.compute().tolist()
    totals = {
        "loss": functional.cross_entropy(outputs, samples.labels, reduction="sum").item(),
        "correct": float((outputs.argmax(dim=1) == samples.labels).sum()),
        "tenths": n * float(torch.tensor(0.1)),
    }
    return n, totals, values, outputs.tolist()


@pytest.mark.filterwarnings("ignore:No (positive|negative) samples in targets", "ignore:The variance of predictions")
@pytest.mark.parametrize("world", [1, 3, pytest.param(8, marks=pytest.mark.nightly)])
def test_ranks_together_find_what_one_process_finds(world: int) -> None:
    """Also where there are fewer samples than ranks, and batches are uneven, empty or out of order."""
    ns = [5, 101, 8, 1]  # first where a rank has none: after a training DDP's first forward alone waits for all
    results = ranks.run(world, together, ns)
    for rank, result in enumerate(results):
        assert not isinstance(result, Exception), result.__notes__
        for n, (count, totals, values, holds, rows) in zip(ns, result, strict=True):
            expected_count, expected_totals, expected_values, expected_rows = alone(n)
            assert (count, holds) == (expected_count, True)
            assert totals == pytest.approx(expected_totals, rel=1e-14)
            assert totals["correct"] == expected_totals["correct"]
            assert values.keys() == expected_values.keys()
            for name, value in expected_values.items():
                if name != "formula" or world == 1 or n > world:  # torchmetrics' wants two samples on some rank
                    assert values[name] == pytest.approx(value, rel=1e-5, nan_ok=True), (name, n)
            assert values["sum"] == expected_values["sum"]
            if rank == 0:
                torch.testing.assert_close(torch.tensor(rows), torch.tensor(expected_rows), rtol=1e-12, atol=0)
            else:
                assert rows is None


def collected(rank: int, world: int, store: Store) -> dict[str, Any]:
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    grouped = MetricCollection(MulticlassAccuracy(num_classes=2), MulticlassF1Score(num_classes=2), prefix="test/")
    samples = toy.samples(5, 2, torch.float64)
    own = torch.arange(5)[rank::world]
    batches = [(own, (samples.inputs[own], samples.labels[own]))]
    return plain(evaluate(model_of(0), batches, 5, metrics=grouped))[2]


def test_a_collection_of_metrics() -> None:
    """torchmetrics joins those with equal states after a rank's first batch; not all ranks have one."""
    samples = toy.samples(5, 2, torch.float64)
    with torch.no_grad():
        outputs = model_of(0).eval()(samples.inputs)
    expected = {
        "test/MulticlassAccuracy": MulticlassAccuracy(num_classes=2)(outputs, samples.labels).item(),
        "test/MulticlassF1Score": MulticlassF1Score(num_classes=2)(outputs, samples.labels).item(),
    }
    assert ranks.run(7, collected) == [pytest.approx(expected)] * 7


def refused(rank: int, world: int, store: Store) -> list[str]:
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    own, data = torch.arange(8)[rank::world], (torch.full((4, 4), 1.0 + rank).double(), torch.zeros(4).long())
    others = torch.arange(8)[1 - rank :: world]
    found = []
    for attempt in (
        lambda: evaluate(model_of(0), [(others, data)], 8, keep=lambda outputs: outputs),
        lambda: evaluate(model_of(0), [(own // 4 * 4 + rank, data)], 8, keep=lambda outputs: outputs),
        lambda: evaluate(model_of(0), [(own, data)], 8, sums={"loss": functional.cross_entropy}),
        lambda: evaluate(model_of(0), [(own, data)], 8, metrics={"average": Average(constant=False)}),
        lambda: gather_predictions(torch.zeros(4 - rank), 8),
        lambda: gather_predictions(torch.zeros(4, 2 + rank), 8),
        lambda: gather_predictions(torch.zeros(4, dtype=(torch.float32, torch.int64)[rank]), 8),
    ):
        with pytest.raises((ValueError, RuntimeError)) as caught:
            attempt()
        found.append(str(caught.value))
    return found


def test_what_cannot_be_exact_is_refused_on_every_rank() -> None:
    results = ranks.run(2, refused)
    assert results[0][2:] == results[1][2:]
    order, twice, loss, average, rows, shape, dtype = results[0]
    assert twice == "rank 0 of 2 cannot keep one row of each sample: it was given none or several of 0, 2, 4, 6"
    assert order.startswith("rank 0 of 2 cannot keep rows of the samples 1, 3, 5, 7, only of 0, 2, 4, 6 of 8: ")
    assert loss == "loss must be one value a sample: (4,), not ()"
    assert average.startswith("Average cannot be computed from all ranks: ValueError: its state value is averaged")
    assert rows == "rank 1 has predictions of 3 samples, and its shard of 8 has 4"
    assert shape.startswith(
        "rank 1 has rows of shape, dtype and device ((3,), torch.float32, 'cpu'), and rank 0 has ((2,)"
    )
    assert "torch.int64" in dtype


def prediction(n: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Any bits, nan's and a bool's 0 and 1 among them."""
    random = torch.Generator().manual_seed(n)
    values = torch.randint(
        0, 2 if dtype is torch.bool else 256, (n, math.prod(shape) * dtype.itemsize), generator=random
    )
    return values.to(torch.uint8).view(dtype).view(n, *shape)


def gathered(
    rank: int, world: int, store: Store, cases: list[tuple[int, torch.dtype, tuple[int, ...]]], budget: int
) -> list[Any]:
    """For each case whether rank 0 got the whole, what it held beside that at most, and the rounds."""
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    evaluating._BUFFER = budget
    found = []
    for n, dtype, shape in cases:
        whole = prediction(n, dtype, shape)
        own = whole[rank::world].clone()
        if not len(own):
            own = torch.empty(0)  # no batch told it of what kind they are
        with mock.patch.object(dist, "gather", wraps=dist.gather) as gather:
            result = gather_predictions(own, n)
        held = [sum(part.nbytes for part in call.args[1]) for call in gather.call_args_list if call.args[1]]
        if result is not None:
            assert (result.dtype, result.shape) == (whole.dtype, whole.shape)
            assert torch.equal(result.view(-1).view(torch.uint8), whole.view(-1).view(torch.uint8))
            assert result.untyped_storage().nbytes() == whole.nbytes
        found.append((result is not None, max(held, default=0), gather.call_count))
    return found


@pytest.mark.parametrize(
    ("world", "budget"), [(1, 64), (3, 64), (3, 64 << 20), pytest.param(8, 200, marks=pytest.mark.nightly)]
)
def test_predictions_are_in_order_and_nobody_holds_them_twice(world: int, budget: int) -> None:
    """Bit for bit, of any dtype and shape, in as many rounds as the budget asks for."""
    cases = [(n, dtype, shape) for n in (97, 3, 1) for dtype in DTYPES for shape in [(), (3,), (2, 2)]]
    results = ranks.run(world, gathered, cases, budget)
    for rank, result in enumerate(results):
        assert not isinstance(result, Exception), result.__notes__
        for (n, dtype, shape), (whole, held, rounds) in zip(cases, result, strict=True):
            row = math.prod(shape) * dtype.itemsize
            assert whole == (rank == 0)
            assert held <= max(budget, world * row)
            longest = -(-n // world)
            assert rounds == (0 if world == 1 else math.ceil(longest / max(1, min(longest, budget // (world * row)))))


def padded(rank: int, world: int, store: Store) -> tuple[bool, int, float]:
    """As DistributedSampler does it: sample 0 comes to rank 2 as well."""
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    tally = Tally(toy.run(rank, world, Training()), phase(5))
    own = torch.tensor([*range(5), 0])[rank::world]
    result = evaluate(model_of(0), taken([own], toy.samples(5, 2, torch.float64), tally), 5)
    return prove(tally).holds, result.count, result.mean("loss")


def test_a_repeated_sample_is_counted_and_disproved() -> None:
    samples = toy.samples(5, 2, torch.float64)
    chosen = torch.tensor([*range(5), 0])
    with torch.no_grad():
        loss = functional.cross_entropy(model_of(0).eval()(samples.inputs[chosen]), samples.labels[chosen]).item()
    assert ranks.run(3, padded) == [(False, 6, pytest.approx(loss, rel=1e-14))] * 3


def by_hand(rank: int, world: int, store: Store) -> list[Any]:
    """A metric of a user's own loop, computed twice, and looked at on each rank before that."""
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    metric = MulticlassAccuracy(num_classes=2, average="micro", sync_on_compute=False)
    found = []
    for right in (3, 1):
        if rank < 2:
            metric.update(torch.tensor([1] * right + [0] * (1 + 2 * rank)), torch.ones(right + 1 + 2 * rank).long())
            metric.compute()
        found.append(compute(metric).item())
        assert not metric.update_called
    return found


def test_a_metric_of_ones_own_loop() -> None:
    assert ranks.run(3, by_hand) == [[pytest.approx(6 / 10), pytest.approx(2 / 6)]] * 3
