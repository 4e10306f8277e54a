"""Evaluation that is exact for any number of ranks: they exchange sums and counts, never means.

Each rank evaluates its own shard on the bare module, at its own pace, and exchanges nothing before the end. (DDP's
forward can be a collective call, in which the others would wait for a rank that has no batch left.)
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from torchtally import compat_torchmetrics, exchange
from torchtally.distributed import own_group
from torchtally.proof.shards import Shard

if TYPE_CHECKING:  # who brings its metrics has it; nothing here needs it otherwise
    from torchmetrics import Metric

_BUFFER = 64 << 20  # bytes of all ranks' predictions that are under way to rank 0 at a time

PerSample = Callable[[Any, Any], Tensor]  # (outputs, labels) -> one value a sample

CLASSIFICATION: Mapping[str, PerSample] = {
    "loss": lambda outputs, labels: functional.cross_entropy(outputs, labels, reduction="none"),
    "correct": lambda outputs, labels: outputs.argmax(dim=1) == labels,
}


@dataclass(frozen=True)
class Evaluation:
    """The results of a phase over all ranks. They are equal on all ranks, except `kept`.

    Attributes:
        count: Number of samples.
        totals: Sums over the samples, by name.
        metrics: Values of the metrics, by name.
        kept: What `keep` returned for this rank's samples, in the dataset's order, on the CPU. None without `keep`.
    """

    count: int
    totals: dict[str, float]
    metrics: dict[str, Any]
    kept: Tensor | None

    def mean(self, name: str) -> float:
        """Return `totals[name]` divided by the number of samples, or nan if there is none."""
        return self.totals[name] / self.count if self.count else math.nan


@torch.no_grad()  # no inference_mode: what a model or a metric makes here and keeps may be needed in training
def evaluate(
    model: nn.Module,
    batches: Iterable[Any],
    n: int,
    *,
    sums: Mapping[str, PerSample] = CLASSIFICATION,
    metrics: "Mapping[str, Metric] | None" = None,
    keep: Callable[[Any], Tensor] | None = None,
) -> Evaluation:
    """Evaluate this rank's batches of a dataset, and combine the results of all ranks.

    This is a collective call, over gloo. Ranks can have different numbers of batches, empty ones, or none.

    Args:
        model: The model, evaluated without DDP and with rank 0's buffers. Afterwards, its modules are in their earlier
            modes.
        batches: Pairs (indices, (inputs, labels)), as `Account.epoch` yields them. Tensors are moved to the model's
            device.
        n: Number of samples of the dataset.
        sums: Functions by name that compute one value per sample from (outputs, labels). The values are added up in
            float64. By default, `loss` is the cross entropy and `correct` whether the largest logit is the label's.
        metrics: Metrics of torchmetrics by name. They are reset, updated with (outputs, labels) of each batch, computed
            from the states of all ranks, and reset again.
        keep: Function that returns the part of a batch's outputs to keep, one row per sample.

    Raises:
        ValueError: A sum does not have one value per sample. Or, with `keep`, the samples are not those of this rank's
            shard of the contract `exact` in the dataset's order (rank, rank + world, rank + 2 world, ...), each once.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    if isinstance(model, DistributedDataParallel):
        model = model.module
    where = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    metrics = dict(metrics or {})  # of a MetricCollection, too: each metric with its own state
    for metric in metrics.values():
        metric.to(where).reset()
    for buffer in model.buffers():  # BatchNorm's differ: the last step of each rank was with its own samples
        dist.broadcast(buffer, src=0, group=_group_for(buffer))

    count, kept, times = 0, torch.empty(0), torch.empty(0)
    totals = dict.fromkeys(sums, torch.zeros((), dtype=torch.float64))
    with _evaluating(model):
        for indices, data, *_ in batches:
            if not (rows := len(indices)):  # not every model can take an empty batch
                continue
            inputs, labels = (part.to(where, non_blocking=True) if isinstance(part, Tensor) else part for part in data)
            outputs = model(inputs)
            for name, function in sums.items():
                values = function(outputs, labels)
                if values.shape != (rows,):
                    raise ValueError(f"{name} must be one value a sample: {(rows,)}, not {tuple(values.shape)}")
                totals[name] = totals[name].to(values.device) + values.sum(dtype=torch.float64)
            for metric in metrics.values():
                metric.update(outputs, labels)
            if keep is not None:
                part = keep(outputs).cpu()
                if not count:
                    size = Shard(n=n, rank=rank, world=world).size
                    kept, times = torch.zeros((size, *part.shape[1:]), dtype=part.dtype), torch.zeros(size)
                if not bool(((indices >= 0) & (indices < n) & (indices % world == rank)).all()):
                    raise ValueError(
                        f"rank {rank} of {world} cannot keep rows of the samples {_few(indices.tolist())}, only of "
                        f"{_few(range(n)[rank::world])} of {n}: take them in the dataset's order, none twice"
                    )
                kept.index_copy_(0, indices // world, part)
                times.index_add_(0, indices // world, torch.ones(rows))
            count += rows
    if bool((times != 1).any()):
        wrong = (times != 1).nonzero().flatten() * world + rank
        raise ValueError(
            f"rank {rank} of {world} cannot keep one row of each sample: it was given none or several of "
            f"{_few(wrong.tolist())}"
        )

    added = torch.tensor([count, *(total.item() for total in totals.values())], dtype=torch.float64)
    dist.all_reduce(added, group=own_group.of_all())
    everything, *each = added.tolist()
    return Evaluation(
        count=int(everything),
        totals=dict(zip(totals, each, strict=True)),
        metrics={name: compute(metric) for name, metric in metrics.items()},
        kept=kept if keep is not None else None,
    )


def gather_predictions(own: Tensor, n: int) -> Tensor | None:
    """Return the rows of all ranks' samples in the dataset's order, on rank 0. Other ranks return None.

    This is a collective call: over gloo if `own` is on the CPU, and over NCCL if it is on a GPU. The result is on the
    same device. Beside `own` and the result, each rank needs memory for 64 MiB of rows, or for one row of each rank if
    that is more.

    Args:
        own: One row per sample of this rank, in the dataset's order, such as `Evaluation.kept`. Rows can have any dtype
            and shape.
        n: Number of samples of the dataset.

    Raises:
        ValueError: A rank does not have one row per sample of its shard, or its rows differ in shape, dtype, or device.
            All ranks raise it.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    row, dtype, device = _agreed(own, n, world)
    if world == 1:
        return own
    size = math.prod(row) * dtype.itemsize
    longest = Shard(n=n, rank=0, world=world).size
    step = min(longest, max(1, _BUFFER // (world * max(1, size))))
    mine = _as_bytes(own.detach().contiguous(), size)
    result = torch.empty((n, *row), dtype=dtype, device=device) if rank == 0 else None
    part = torch.zeros((step, size), dtype=torch.uint8, device=device)
    parts = [torch.empty_like(part) for _ in range(world)] if rank == 0 else None
    # Every rank takes part in every round, so none waits for longer than one; parts are equal, as gloo wants them.
    for at in range(0, longest, step):
        here = mine[at : at + step]
        part[: len(here)] = here
        dist.gather(part, parts, dst=0, group=_group_for(part))
        if result is not None and parts is not None:
            for other, rows in enumerate(parts):
                places = _as_bytes(result, size)[other + at * world :: world][:step]
                places.copy_(rows[: len(places)])
    return result


def compute(metric: "Metric") -> Any:
    """Return the value of a torchmetrics metric over the updates of all ranks, on every rank, and reset the metric.

    This is a collective call. It replaces `metric.compute()`. That fails, or even aborts the process, if
    a state is a list and a rank had fewer batches than others, or none. Rank 0 computes the value once, on its CPU.

    Raises:
        RuntimeError: The value cannot be computed. All ranks raise it.
    """
    device = metric.device
    metric.cpu()  # where all ranks' states together are sure to fit
    modules = compat_torchmetrics.with_state(metric)
    updated = any(module.update_called for module in modules)
    group = own_group.of_all()
    own = [module.metric_state for module in modules] if updated else None
    outcome: list[Any] = [None, None]
    cause = None
    try:
        gathered = exchange.gather(own, group, exchange.TENSORS)
        if gathered is not None:
            found = _computed(metric, modules, [states for states in gathered if states is not None])
            outcome[0] = exchange.TENSORS.read(exchange.TENSORS.write(found))  # as the other ranks will
    except Exception as error:  # said by all ranks
        outcome[1], cause = f"{type(error).__name__}: {error}", error
    outcome = exchange.broadcast(outcome, 0, group, exchange.TENSORS)
    metric.reset()
    metric.to(device)
    if outcome[1] is not None:
        raise RuntimeError(f"{type(metric).__name__} cannot be computed from all ranks: {outcome[1]}") from cause
    return outcome[0]


def _computed(metric: "Metric", modules: list[Any], states: list[list[dict[str, Any]]]) -> Any:
    """The metric's value, with each of its `modules` (its own and nested ones) in the state of all ranks together."""
    for number, module in enumerate(modules):
        for name, reduction in compat_torchmetrics.reductions(module):
            if states:
                setattr(module, name, _merged(name, reduction, [each[number][name] for each in states]))
        compat_torchmetrics.forget_value(module)
    syncing = [module.distributed_available_fn for module in modules]
    try:
        for module in modules:
            module.distributed_available_fn = lambda: False  # it is merged already
        return metric.compute()
    finally:
        for module, function in zip(modules, syncing, strict=True):
            module.distributed_available_fn = function


def _merged(name: str, reduction: Callable[[Tensor], Tensor] | None, values: list[Any]) -> Any:
    """One state of all ranks that have one, by torchmetrics' rules for it."""
    from torchmetrics.utilities import dim_zero_mean

    if isinstance(values[0], list):
        return [entry for value in values for entry in value]  # as if all updates had been made here
    stacked = torch.stack(values)
    if reduction is dim_zero_mean and not torch.equal(stacked, values[0].expand_as(stacked)):
        raise ValueError(f"its state {name} is averaged over ranks, as if all had as many samples")
    return stacked if reduction is None else reduction(stacked)


def _agreed(own: Tensor, n: int, world: int) -> tuple[tuple[int, ...], torch.dtype, str]:
    """Shape of a row, dtype and device of all ranks' rows; a rank without a sample cannot know them."""
    mine = [len(own), [list(own.shape[1:]), str(own.dtype).removeprefix("torch."), own.device.type]]
    found = exchange.all_gather(mine, own_group.of_all())
    for rank, (rows, _) in enumerate(found):
        if rows != (expected := Shard(n=n, rank=rank, world=world).size):
            raise ValueError(f"rank {rank} has predictions of {rows} samples, and its shard of {n} has {expected}")
    kinds = {
        rank: (tuple(shape), getattr(torch, dtype), device)
        for rank, (rows, [shape, dtype, device]) in enumerate(found)
        if rows
    }
    for rank, kind in kinds.items():
        if kind != kinds[0]:
            raise ValueError(f"rank {rank} has rows of shape, dtype and device {kind}, and rank 0 has {kinds[0]}")
    row, dtype, device = kinds[0]
    return row, dtype, device


def _as_bytes(rows: Tensor, size: int) -> Tensor:
    """The memory of contiguous `rows`, `size` bytes each: gloo does not know every dtype."""
    # A single row is contiguous with any stride, which view() would keep, and then not take.
    return rows.as_strided((rows.numel(),), (1,)).view(torch.uint8).view(len(rows), size)


def _group_for(tensor: Tensor) -> dist.ProcessGroup | None:
    """The process group for a tensor: gloo, or for one on a GPU the default group."""
    return own_group.of_all() if tensor.device.type == "cpu" else None


def _few(indices: Sequence[int]) -> str:
    return ", ".join(map(str, indices[:4])) + (", ..." if len(indices) > 4 else "")


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
