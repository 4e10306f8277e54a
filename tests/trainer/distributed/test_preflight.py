"""Pods are compared before the first step, on real ranks; one that is slow is named, or refused."""

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from accounts import run
from task_runs import reported

from torchtally import Account, events
from torchtally.distributed import preflight
from torchtally.distributed.preflight import Measured, _partners


def checked(mode: str, slow: int | None, act: str = "mm") -> None:
    """As a program does it, by a clock that only counts what is done: one rank has an act that takes far longer."""
    os.environ.update(TORCHTALLY_PREFLIGHT=mode, TORCHTALLY_NODE=f"node-{dist.get_rank()}")
    preflight._SIDE["cpu"] = 64
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 1e-4
        return now

    def slowed(module: Any, name: str, seconds: Callable[[torch.Tensor], float]) -> None:
        original = getattr(module, name)

        def call(data: torch.Tensor, *arguments: Any, **options: Any) -> Any:
            nonlocal now
            now += seconds(data)
            return original(data, *arguments, **options)

        setattr(module, name, call)

    preflight.time = SimpleNamespace(perf_counter=clock)  # type: ignore[assignment, attr-defined]
    if dist.get_rank() == slow:
        if act == "mm":
            slowed(torch, "mm", lambda _: 0.1)
        elif act == "bandwidth":
            slowed(dist, "isend", lambda data: 1e-6 * data.numel())
        else:
            slowed(dist, "isend", lambda data: 0.01 * (data.numel() == 1))
    for _ in range(2):  # it is made once in a process
        with Account(task="t", plan={"train": 1}) as account:
            for _ in account.epoch("train", 1, account.loader(range(6), "train", batch_size=2)):
                account.commit()


def test_a_slow_pod_is_reported_with_its_node_and_the_job_goes_on() -> None:
    found = run(3, checked, "report", 2)
    sentence = "pod-2 on node node-2 computes "
    for rank, each in enumerate(found):
        assert each["code"] == 0
        (event,) = reported(each["out"], events.Preflight)
        assert event.node == f"node-{rank}"
        assert (event.slow or "").startswith(sentence) == (rank == 2)
        assert event.matrix > 0 and event.bandwidth and event.latency
        assert event.all_reduce_bandwidth and event.all_reduce_latency
    assert f"preflight: {sentence}" in found[0]["err"]


@pytest.mark.parametrize(
    ("act", "what"), [("mm", "computes"), ("bandwidth", "exchanges"), ("latency", "has its messages")]
)
def test_a_job_refuses_to_start_with_a_slow_pod(act: str, what: str) -> None:
    for each in run(3, checked, "refuse", 1, act):
        assert each["code"] == 2
        assert f"preflight: pod-1 on node node-1 {what} " in each["err"]
        assert "pod-0" not in each["err"] and "pod-2" not in each["err"]
        assert "keep the job off this node" in each["err"]
        assert not each["lines"]


def test_equal_pods_start() -> None:
    for each in run(2, checked, "refuse", None):
        assert each["code"] == 0 and reported(each["out"], events.Preflight)[0].slow is None


def test_a_word_that_is_none_is_refused_on_all_ranks() -> None:
    for each in run(2, checked, "maybe", None):
        assert each["code"] == 2
        assert "TORCHTALLY_PREFLIGHT='maybe' must be report or refuse" in each["err"]


def test_one_rank_has_nobody_to_compare_with() -> None:
    (each,) = run(1, checked, "refuse", 0)
    (event,) = reported(each["out"], events.Preflight)
    assert (each["code"], event.bandwidth, event.all_reduce_latency, event.slow) == (0, None, None, None)


def pod(name: str, matrix: float = 1e11, bandwidth: float = 1e8, latency: float = 1e-4) -> Measured:
    return Measured(pod=name, node=None, matrix=matrix, bandwidth=bandwidth, latency=latency)


@pytest.mark.parametrize(
    ("own", "sentence"),
    [
        (pod("a"), None),
        (pod("a", matrix=0.51e11), None),
        (pod("a", matrix=0.49e11), "a computes 49 GFLOP/s, and the median of the other pods is 100"),
        (pod("a", bandwidth=4e7), "a exchanges 40 MB/s, and the median of the other pods is 100"),
        (pod("a", latency=5e-4), None),  # five times as long, and next to nothing
        (pod("a", latency=0.05), "a has its messages answered in 50 ms, and the median of the other pods is 0.1"),
    ],
)
def test_what_is_slow(own: Measured, sentence: str | None) -> None:
    assert preflight._slow(own, [pod("b"), pod("c"), pod("d", matrix=1e9)]) == sentence


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 9])
def test_pods_are_paired_with_each_other_and_with_different_ones(count: int) -> None:
    ranks = [3 * each for each in range(count)]  # the first ones of pods with three
    partners = {rank: [*_partners(rank, ranks)] for rank in ranks}
    for rank, others in partners.items():
        assert rank not in others and len({*others}) == len(others)
        assert len(others) >= min(count - 1, 2)
        assert all(rank in partners[other] for other in others)
