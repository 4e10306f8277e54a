"""What a proof finds: the faults that counts alone never show, on real ranks."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import ranks
import torch
import torch.distributed as dist
import toy
from torch.distributed.distributed_c10d import Store

from torchtally.accounting.ledger.tally import Phase, Run, Tally
from torchtally.accounting.order.schedule import Schedule
from torchtally.accounting.proofs.printing import emit
from torchtally.accounting.proofs.proving import enforce, prove
from torchtally.errors import Unproven
from torchtally.options import Training
from torchtally.proof import digest
from torchtally.proof.contract import CONTRACTS
from torchtally.proof.digest import Digest, parse
from torchtally.proof.line import PREFIX
from torchtally.proof.permutation import locate

Fault = Callable[[Schedule], Iterator[torch.Tensor]]


def fits(rank: int, world: int, store: Store, options: list[Training], n: int) -> list[Any]:
    """The lines of each phase of these trainings."""
    return [toy.fit(rank, world, store, each, n, 10)["phases"] for each in options]


def prove_all(rank: int, world: int, store: Store, cases: list[tuple[Fault, int]], epoch: int = 1) -> list[Any]:
    """For each of these, which yields the steps of an epoch of so many samples: the lines, and what ends the run."""
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    found: list[Any] = []
    for fault, n in cases:
        phase = Phase(name="train", epoch=epoch, n=n, batch=8 * world, contract="exact", order="feistel-1")
        tally = Tally(toy.run(rank, world, Training()), phase)
        for indices in fault(Schedule(tally.shard, phase.batch)):
            tally.record(indices.numpy())
        proof, ends = prove(tally), None
        try:
            enforce(proof, first=True)
        except Unproven as error:
            ends = str(error)
        found.append((proof.lines, ends))
    return found


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_every_contract_is_proved_where_n_does_not_divide(world: int) -> None:
    options = [Training(epochs=2, batch_size=8, contract=contract) for contract in CONTRACTS]
    for result in ranks.run(world, fits, options, 101):
        for contract, phases in zip(CONTRACTS, result, strict=True):
            made = [(lines[-1]["phase"], lines[-1]["epoch"]) for lines in phases]
            assert made == [("train", 1), ("test", 1), ("train", 2), ("test", 2)]
            expected = {"exact": 101, "padded": 101 + -101 % world, "drop_last": 101 - 101 % world}[contract]
            for lines in phases:
                everything = lines[-1]
                assert everything["consumed"] == (expected if everything["phase"] == "train" else 10)
                assert sum(line["consumed"] for line in lines[:-1]) == everything["consumed"]
                assert sum((parse(line["digest"]) for line in lines[:-1]), Digest()) == parse(everything["digest"])
                assert all(line["lost"] == line["duplicated"] == 0 for line in lines)


FAULTS = {
    toy.rank_local_shuffle: 400,
    toy.two_swapped_for_their_neighbours: 400,
    toy.distributed_sampler: 402,
    toy.skips_a_batch: 400,
    toy.repeats_a_batch: 400,
}
Proofs = dict[Any, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def proofs() -> Proofs:
    """By fault, the lines of the training phase on four ranks, the line of all ranks last."""
    [found, *_] = ranks.run(4, prove_all, [*FAULTS.items()])
    return {fault: lines for fault, (lines, _) in zip(FAULTS, found, strict=True)}


def test_rank_local_shuffle_is_found_though_every_count_is_right(proofs: Proofs) -> None:
    *own, everything = proofs[toy.rank_local_shuffle]
    assert [line["consumed"] for line in own] == [line["expected"] for line in own] == [100] * 4
    # Of n samples drawn by 4 ranks, each n/4 without the others' knowledge, (3/4)^4 = 31.6% are never seen.
    assert 0.25 < everything["lost"] / 400 < 0.40
    assert everything["lost"] == everything["duplicated"]
    assert all(line["lost"] > 0 for line in own)


def test_two_indices_swapped_for_their_neighbours_are_found_and_named(proofs: Proofs) -> None:
    *own, everything = proofs[toy.two_swapped_for_their_neighbours]
    wrong = own[0]
    assert wrong["consumed"] == wrong["expected"] == 100
    assert (wrong["lost"], wrong["duplicated"]) == (2, 2)
    up, down = wrong["lost_indices"]
    assert wrong["duplicated_indices"] == [up + 1, down - 1]
    assert [line["lost"] for line in own[1:]] == [0, 0, 0]
    assert everything["lost_indices"] == [up, down]


def test_distributed_sampler_is_found_where_n_does_not_divide(proofs: Proofs) -> None:
    *_, everything = proofs[toy.distributed_sampler]
    assert (everything["expected"], everything["consumed"]) == (402, 404)
    assert (everything["lost"], everything["duplicated"]) == (0, 2)


def test_a_skipped_batch_is_lost(proofs: Proofs) -> None:
    *own, everything = proofs[toy.skips_a_batch]
    assert [(line["lost"], line["duplicated"]) for line in own] == [(8, 0)] * 4
    assert (everything["lost"], everything["duplicated"]) == (32, 0)


def test_a_repeated_batch_is_duplicated(proofs: Proofs) -> None:
    *own, everything = proofs[toy.repeats_a_batch]
    assert [(line["lost"], line["duplicated"]) for line in own] == [(0, 8)] * 4
    assert (everything["lost"], everything["duplicated"]) == (0, 32)
    assert len(everything["duplicated_indices"]) == 8  # named as far as a line has room


def test_an_index_that_is_no_sample_is_found_on_every_rank() -> None:
    results = ranks.run(2, prove_all, [(toy.counts_from_the_end, 400)])
    *own, everything = results[0][0][0]
    assert (own[1]["lost"], own[1]["duplicated"]) == (8, 8)
    assert own[1]["duplicated_indices"][-1] == -1
    assert (everything["consumed"], everything["lost"], everything["duplicated"]) == (400, 8, 8)
    assert all(ends for [(_, ends)] in results)


def test_an_epoch_in_the_order_of_the_first_is_found() -> None:
    ([(second, _)], _) = ranks.run(2, prove_all, [(toy.never_sets_the_epoch, 100)], 2)
    # Together the ranks still see everything once; what each should have seen says that the order did not change.
    assert second[-1]["lost"] == 0
    assert second[0]["lost"] > 0


def test_a_failed_proof_ends_the_run_on_every_rank() -> None:
    faults = (toy.rank_local_shuffle, toy.skips_a_batch, toy.two_swapped_for_their_neighbours)
    for results in ranks.run(3, prove_all, [(fault, 90) for fault in faults]):
        for _, ends in results:
            assert "train epoch 1 is not proved: of 90 samples" in ends


def test_a_line_is_one_short_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    world, n = 10**5, 2**40
    line = {
        **toy.run(world - 1, world, Training()).__dict__,
        **Phase(
            name="train", epoch=10**4, n=n, batch=2**20, contract="drop_last", order="feistel-1", start=n - 1
        ).__dict__,
        "pod": "p" * 63,
        "expected": n,
        "consumed": n,
        "digest": str(Digest()),
        "lost": n,
        "duplicated": n,
        "lost_indices": [n - 1] * 8,
        "duplicated_indices": [n - 1] * 8,
    }
    emit(line)
    printed = capsys.readouterr().out
    assert printed.startswith(PREFIX)
    assert printed.endswith("\n")
    assert len(printed) < 1000
    assert json.loads(printed.removeprefix(PREFIX)) == line


@pytest.mark.parametrize("index", [-1, 10])
def test_an_index_that_is_no_sample_is_counted_and_stays_out_of_the_digest(index: int) -> None:
    run = Run(run="r", attempt=0, pod="", task="", plan={}, rank=0, world=1, seed=0, data="")
    tally = Tally(run, Phase(name="train", epoch=1, n=10, batch=2, contract="exact", order="sequential"))
    tally.record(np.array([3, index]))
    assert (tally.digest.words[0], tally.count, tally.outside) == (1, 2, [index])


def test_a_tally_holds_what_was_recorded_and_nothing_else() -> None:
    phase = Phase(name="train", epoch=1, n=10, batch=2, contract="exact", order="feistel-1")
    tally = Tally(toy.run(0, 1, Training()), phase)
    assert (tally.count, tally.digest) == (0, Digest())
    for batch in ([3, 1], [], [3, -1, 10]):
        tally.record(np.array(batch, dtype=np.int64))
    once = digest.of_samples(locate(np.array([3, 1, 3]), 10, 0, 1), np.array([3, 1, 3]), digest.base("test"))
    assert tally.digest == once
    assert (tally.count, tally.outside) == (5, [-1, 10])
    assert tally.kept is not None and tally.kept.tolist() == [3, 1, 3, -1, 10]
