"""Pods that hold different things end at once, all of them, with both values."""

import os
import tempfile
from datetime import timedelta
from typing import Any

import pytest
import ranks
from messages import plain
from torch.distributed.distributed_c10d import Store

from torchtally.distributed import handshake
from torchtally.errors import Lost, Refused
from torchtally.pod.names import Names


def agree(rank: int, world: int, store: Store, facts: list[dict[str, Any]], problems: list[str | None]) -> Any:
    return handshake.agree(store, rank, world, f"pod-{rank}", facts[rank], problems[rank])


def test_equal_facts_are_agreed_and_rank_0_draws_the_private_ones() -> None:
    facts = [{"seed": 1, "data": "sha256:ab", "_run": f"drawn by {rank}"} for rank in range(3)]
    assert ranks.run(3, agree, facts, [None] * 3) == [facts[0]] * 3


@pytest.mark.parametrize(("ours", "theirs"), [("sha256:ab", "sha256:cd"), ([1], None)])
def test_a_difference_ends_every_rank_with_both_values(ours: Any, theirs: Any) -> None:
    results = ranks.run(3, agree, [{"fact": ours}, {"fact": ours}, {"fact": theirs}], [None] * 3)
    assert all(isinstance(result, Refused) for result in results)
    assert len({str(result) for result in results}) == 1
    assert f"rank 2 (pod-2) has fact {theirs} and rank 0 (pod-0) has {ours}" in str(results[0])


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        ({"epochs": 1, "seed": 1, "lr": 0.1}, "has options epochs 1 and rank 0 (pod-0) has 2"),
        ({"epochs": 2, "seed": 1}, "has options lr None and rank 0 (pod-0) has 0.1"),
        (
            {"epochs": 1, "seed": 1, "lr": 1},
            "has options {'epochs': 1, 'lr': 1} and rank 0 (pod-0) has {'epochs': 2, 'lr': 0.1}",
        ),
    ],
)
def test_of_options_only_those_that_differ_are_told(theirs: Any, said: str) -> None:
    ours = {"epochs": 2, "seed": 1, "lr": 0.1}
    results = ranks.run(2, agree, [{"options": ours}, {"options": theirs}], [None] * 2)
    assert [f"rank 1 (pod-1) {said}: it must be the same on all pods" in str(each) for each in results] == [True] * 2


def test_one_pods_problem_ends_all_of_them() -> None:
    facts: list[dict[str, Any]] = [{"data": "sha256:ab"}, {"data": None}, {"data": "sha256:ab"}]
    results = ranks.run(3, agree, facts, [None, "no source for the data", None])
    assert {plain(str(result)) for result in results} == {"rank 1 (pod-1): no source for the data"}


def agree_without_the_last_two(rank: int, world: int, store: Store) -> Any:
    handshake._TIMEOUT = timedelta(seconds=5)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(TORCHTALLY_STACKS=folder, LOCAL_WORLD_SIZE="2")
        names = Names()
        names.known = ["demo-master-0", "demo-worker-0"]
        names.publish()
        return handshake.agree(store, rank, world, f"pod-{rank}", {}, None) if rank < world - 2 else None


def test_ranks_that_do_not_come_are_named_with_their_pods_by_all_that_did() -> None:
    lost = "rank 2 (demo-worker-0), rank 3 (demo-worker-0) did not join the handshake within 0:00:05"
    results = ranks.run(4, agree_without_the_last_two)
    assert all(isinstance(result, Lost) for result in results[:2])
    assert [plain(str(result)) for result in results] == [lost, lost, "None", "None"]
