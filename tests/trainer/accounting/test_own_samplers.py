"""A loader with a sampler of the program's own: what it draws is what is in the weights, on any number of ranks."""

import itertools
import json
import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
from accounts import alone, as_rank, assert_ends, in_turn, run, tallies, verified
from own_samplers import ByTokens, Groups, LengthBuckets, OnOneRank, RepeatedAugmentation, Restless, SeededByRank
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
)
from witness import Noisy, Witness

from torchtally import Account, Batch, Steps
from torchtally.accounting.order.drawn import DrawnSampler
from torchtally.accounting.order.own_sampler import Source
from torchtally.proof.line import PREFIX
from torchtally.verifier.conclusion import conclusion

N = 23
LENGTHS = [(7 * index) % 11 + 1 for index in range(N)]


SETS: dict[str, Callable[[], dict[str, Any]]] = {
    "buckets": lambda: {"batch_sampler": LengthBuckets(LENGTHS, 4)},
    "tokens": lambda: {"batch_sampler": ByTokens(LENGTHS, 20)},
    "tokens by rank": lambda: {"batch_sampler": ByTokens(LENGTHS, 20, by_rank=True)},
    "forgotten": lambda: {"sampler": RandomSampler(range(N)), "batch_size": 3},
    "in order": lambda: {"sampler": SequentialSampler(range(N)), "batch_size": 3},
    "a list": lambda: {"sampler": [*reversed(range(N))], "batch_size": 3},
}
DRAWS: dict[str, Callable[[], dict[str, Any]]] = {
    "distributed": lambda: {"sampler": DistributedSampler(range(N)), "batch_size": 3},
    "weighted": lambda: {"sampler": WeightedRandomSampler(LENGTHS, 2 * N), "batch_size": 3},
    "repeated": lambda: {"sampler": RepeatedAugmentation(N), "batch_size": 3},
    "groups": lambda: {"sampler": Groups(N, 2, 3), "batch_size": 6},
    "some": lambda: {"sampler": SubsetRandomSampler(range(5, N)), "batch_size": 3},
}


def options(how: str | dict[str, Any]) -> dict[str, Any]:
    """What a loader is made with."""
    if isinstance(how, dict):
        return how
    return SETS[how]() if how in SETS else {**DRAWS[how](), "contract": "as_drawn"}


def trains(how: str | dict[str, Any], epochs: int = 2) -> tuple[list[int], list[list[int]]]:
    """How often each sample is in the weights, and this rank's batches."""
    witness, batches = Witness(N), []
    with Account("own", epochs=epochs) as account:
        loader = account.loader(Noisy(N), **options(how))
        for epoch in account.epochs():
            for batch in account.epoch("train", epoch, loader):
                indices, inputs = batch.data
                witness.backward(indices, inputs)
                batches.append(indices.tolist())
                witness.step()
                account.commit()
    return witness.times, batches


@pytest.mark.parametrize("world", [1, 2, 3])
def test_each_sample_once_or_as_often_as_it_is_drawn(world: int, subtests: pytest.Subtests) -> None:
    every = [*SETS, *DRAWS]
    for how, found in zip(every, in_turn(world, ((trains, how) for how in every)), strict=True):
        with subtests.test(how):
            assert [each["code"] for each in found] == [0] * world, found[0]["err"]
            drawn = Counter(index for each in found for batch in each["result"][1] for index in batch)
            assert all(each["result"][0] == [drawn[index] for index in range(N)] for each in found)
            verdict = verified(found)
            assert verdict.holds, [problem.text for problem in verdict.problems]
            lines = tallies(found[0]["out"])[0]
            if how in SETS:
                assert {*drawn.values()} == {2} and len(drawn) == N
                assert "✓ every sample exactly once" in found[0]["out"]
                assert {(line["order"], line["contract"]) for line in lines} == {("drawn", "exact")}
                continue
            [first, second] = [line for line in lines if line["rank"] == "all"]
            assert first["expected"] + second["expected"] == drawn.total()
            assert f"✓ the {first['expected']} draws of the sampler, each exactly once" in found[0]["out"]


def goes_on(folder: str, how: str | dict[str, Any], until: int, workers: int = 0) -> tuple[list[int], int]:
    """Train from the state in a folder on, with a state after each step, and be killed after so many steps."""
    kept = Path(folder) / f"state-{os.environ['RANK']}"
    witness, steps = Witness(N), 0
    with Account("own", epochs=3) as account:
        loader = account.loader(Noisy(N), num_workers=workers, **options(how))
        if kept.exists():
            saved = torch.load(kept)
            account.load_state_dict(saved["account"])
            witness.load(saved["witness"])
        for epoch in account.epochs():
            for batch in account.epoch("train", epoch, loader):
                witness.backward(*batch.data)
                witness.step()
                account.commit()
                steps += 1
                torch.save({"account": account.state_dict(), "witness": witness.save()}, kept)
                if steps == until:
                    dist.barrier()
                    os.kill(os.getpid(), signal.SIGKILL)
    return witness.times, steps


GO_ON = ["buckets", "tokens by rank", "groups", "weighted"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folders = [(str(tmp_path_factory.mktemp("undisturbed")), how) for how in GO_ON]
    ended = in_turn(2, ((goes_on, *each, 0) for each in folders))
    return {how: found[0]["result"] for how, found in zip(GO_ON, ended, strict=True)}


@pytest.mark.parametrize("how", GO_ON)
@pytest.mark.parametrize("until", [1, 7])
def test_a_killed_run_goes_on_within_its_epoch(
    undisturbed: dict[str, Any], tmp_path: Path, how: str, until: int
) -> None:
    assert ranks.run(2, as_rank, goes_on, str(tmp_path), how, until, killed=True) == [None, None]
    found = run(2, goes_on, str(tmp_path), how, 0, 2)
    assert [each["code"] for each in found] == [0, 0], found[0]["err"]
    times, steps = undisturbed[how]
    assert [each["result"] for each in found] == [(times, steps - until)] * 2
    assert verified(found).holds


@pytest.mark.parametrize("how", ["buckets", "weighted"])
def test_other_ranks_share_out_the_rest_of_what_all_have_drawn(
    undisturbed: dict[str, Any], tmp_path: Path, how: str
) -> None:
    assert ranks.run(2, as_rank, goes_on, str(tmp_path), how, 1, killed=True) == [None, None]
    (tmp_path / "state-2").write_bytes((tmp_path / "state-0").read_bytes())
    assert ranks.run(3, as_rank, goes_on, str(tmp_path), how, 1, killed=True) == [None] * 3  # 2 and 3 batches are made
    for rank in range(3):
        (tmp_path / f"state-{rank}").write_bytes((tmp_path / "state-0").read_bytes())
    assert ranks.run(3, as_rank, goes_on, str(tmp_path), how, 1, killed=True) == [None] * 3
    found = run(2, goes_on, str(tmp_path), how, 0)
    assert [each["code"] for each in found] == [0, 0], found[0]["err"]
    assert [each["result"][0] for each in found] == [undisturbed[how][0]] * 2
    assert verified(found).holds


def test_other_ranks_go_on_between_two_epochs_of_what_each_has_drawn_and_not_within_one(tmp_path: Path) -> None:
    a_step = len(run(2, trains, "tokens by rank", 1)[0]["result"][1])
    for until, code in ((a_step, 0), (1, 2)):
        folder = tmp_path / str(until)
        folder.mkdir()
        assert ranks.run(2, as_rank, goes_on, str(folder), "tokens by rank", until, killed=True) == [None, None]
        (folder / "state-2").write_bytes((folder / "state-0").read_bytes())
        found = run(3, goes_on, str(folder), "tokens by rank", 0)
        assert [each["code"] for each in found] == [code] * 3, found[0]["err"]
        if code:
            assert "each of 2 ranks has drawn a part of its own, and 3 ranks cannot continue" in found[0]["err"]
        else:
            assert all(each["result"][0] == [3] * N for each in found)
            assert verified(found).holds


def goes_on_with_its_samplers_state(folder: str, until: int) -> int:
    """The same with a sampler that has a state, which the program saves and loads as well, or leaves alone."""
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    kept, steps = Path(folder) / f"state-{os.environ['RANK']}", 0
    sampler = StatefulDistributedSampler(range(24))  # type: ignore[arg-type]
    saved = torch.load(kept) if kept.exists() else {}
    if "sampler" in saved:
        sampler.load_state_dict(saved["sampler"])
    with Account("own", epochs=2) as account:
        loader = account.loader(Noisy(24), sampler=sampler, batch_size=3)
        if saved:
            account.load_state_dict(saved["account"])
        for epoch in account.epochs():
            for _ in account.epoch("train", epoch, loader):
                account.commit()
                steps += 1
                if steps == until:
                    torch.save({"account": account.state_dict(), "sampler": sampler.state_dict()}, kept)
                    dist.barrier()
                    os.kill(os.getpid(), signal.SIGKILL)
    return steps


@pytest.mark.parametrize("until", [1, 4], ids=["within an epoch", "between two"])
def test_a_samplers_own_state_is_not_needed_and_refused_if_it_is_loaded(tmp_path: Path, until: int) -> None:
    pytest.importorskip("torchdata")
    folder = str(tmp_path)
    assert ranks.run(2, as_rank, goes_on_with_its_samplers_state, folder, until, killed=True) == [None, None]
    found = run(2, goes_on_with_its_samplers_state, folder, 0)
    assert [each["code"] for each in found] == [2, 2]
    assert "draws none: load no state into it" in found[0]["err"]
    for kept in tmp_path.iterdir():
        torch.save({"account": torch.load(kept)["account"]}, kept)
    found = run(2, goes_on_with_its_samplers_state, folder, 0)
    assert [(each["code"], each["result"]) for each in found] == [(0, 8 - until)] * 2, found[0]["err"]
    assert verified(found).holds


RESTLESS: dict[str, Any] = {"sampler": Restless(N), "batch_size": 3}


def test_a_sampler_that_draws_otherwise_after_a_restart_is_refused(tmp_path: Path) -> None:
    assert ranks.run(2, as_rank, goes_on, str(tmp_path), RESTLESS, 1, killed=True) == [None, None]
    found = run(2, goes_on, str(tmp_path), RESTLESS, 0)
    assert [each["code"] for each in found] == [2, 2]
    assert "the sampler draws other batches than before the restart: it must depend on its seed" in found[0]["err"]


NO_CONTRACTS: list[tuple[dict[str, Any], str]] = [
    ({"sampler": SeededByRank(N), "batch_size": 3}, "the samplers differ between ranks"),
    ({"sampler": WeightedRandomSampler(LENGTHS, N), "batch_size": 3}, "must draw each sample once"),
    ({"sampler": SubsetRandomSampler(range(5, N)), "batch_size": 3}, "samples 0, 1, 2, 3, 4 never"),
    ({"sampler": [0, *range(N)], "batch_size": 3}, "sample 0 more than once"),
    ({"sampler": iter(range(N + 1)), "batch_size": 3}, "draws the index 23"),
    ({"sampler": itertools.repeat(0), "batch_size": 1 << 20}, "must end its epochs"),
    ({"batch_sampler": [[0, 1], []]}, "a batch without a sample"),
    ({"batch_sampler": [(0, "a")]}, "must have indices"),
    ({"batch_sampler": []}, "draws none"),
    ({"sampler": OnOneRank(), "batch_size": 3}, "rank 1 fails with RuntimeError: no space"),
    ({"sampler": range(N), "batch_size": 3, "contract": "padded"}, "one of exact, as_drawn"),
    ({"sampler": range(N)}, "batch_size=None must be"),
    ({"batch_sampler": [[0]], "batch_size": 3}, "batch_size=3 must be left out"),
    ({"sampler": range(N), "batch_sampler": [[0]]}, "and not both"),
    ({"sampler": 5, "batch_size": 3}, "sampler=5 must yield indices"),
    ({"batch_size": 3, "contract": "as_drawn"}, "one of exact, padded, drop_last"),
]
OTHER_RANKS = "and have train epoch 1: 23 samples under exact, or train epoch 1: "


def test_what_is_no_contract_is_refused_on_all_ranks(subtests: pytest.Subtests) -> None:
    """Ranks with other data or another contract learn of it before they wait."""
    cases: list[Any] = [((trains, given), 2, said) for given, said in NO_CONTRACTS]
    cases += [
        ((differs, N + 1, "exact"), 2, f"{OTHER_RANKS}{N + 1} samples under exact"),
        ((differs, N, "as_drawn"), 2, f"{OTHER_RANKS}{N} samples under as_drawn"),
        ((plans_steps,), 2, "the plan of train is in steps"),
    ]
    assert_ends(subtests, 2, cases)


def stops(how: str) -> tuple[list[int], list[int]]:
    """Stop after 2 steps of epoch 2: how often each sample is in the weights, and what this rank has had."""
    witness, had = Witness(N), []
    with Account("own", epochs=3) as account:
        loader = account.loader(Noisy(N), **options(how))
        for epoch in account.epochs():
            for batch in account.epoch("train", epoch, loader):
                indices, inputs = batch.data
                witness.backward(indices, inputs)
                witness.step()
                account.commit()
                had += indices.tolist()
                if (epoch, batch.step) == (2, 2):
                    account.stop("patience")
                    break
    return witness.times, had


@pytest.mark.parametrize("how", ["buckets", "groups"])
def test_a_run_that_is_stopped_within_an_epoch_is_proved_up_to_there(how: str) -> None:
    found = run(2, stops, how)
    assert [each["code"] for each in found] == [0, 0], found[0]["err"]
    had = Counter(index for each in found for index in each["result"][1])
    assert found[0]["result"][0] == [had[index] for index in range(N)]
    first, last = (line for line in tallies(found[0]["out"])[0] if line["rank"] == "all")
    assert first["expected"] + last["expected"] == had.total()
    verdict = verified(found)
    assert verdict.holds, [problem.text for problem in verdict.problems]
    draws = f"the first {last['expected']} draws"
    part = f"{draws} of epoch 2, as its sampler drew them" if how == "groups" else f"the first {last['expected']} of 23"
    assert f"train 1 epoch and {part}" in conclusion(verdict)
    assert f"✓ {draws} of the sampler, each exactly once" in found[0]["out"]


def without_every_fifth(samples: Any) -> Batch:
    dropped = {index: "a fifth" for index in samples.indices if index % 5 == 0}
    kept = [(index, sample) for index, sample in zip(samples.indices, samples, strict=True) if index not in dropped]
    indices = torch.tensor([index for index, _ in kept], dtype=torch.int64)
    return Batch(indices, default_collate([sample for _, sample in kept]) if kept else None, dropped=dropped)


def drops(folder: str, how: str, until: int) -> list[int]:
    """What this rank has had of what is not dropped, from the state in a folder on, up to so many steps."""
    kept, steps, had = Path(folder) / f"state-{os.environ['RANK']}", 0, []
    with Account("own", epochs=2) as account:
        loader = account.loader(Noisy(N), collate_fn=without_every_fifth, **options(how))
        if kept.exists():
            account.load_state_dict(torch.load(kept))
        for epoch in account.epochs():
            for batch in account.epoch("train", epoch, loader):
                dist.barrier()  # as the reduction of gradients
                account.commit()
                steps += 1
                had += batch.indices.tolist()
                torch.save(account.state_dict(), kept)
                if steps == until:
                    dist.barrier()
                    os.kill(os.getpid(), signal.SIGKILL)
    return had


@pytest.mark.parametrize("how", ["buckets", "groups"])
def test_what_is_dropped_before_a_restart_stays_dropped(tmp_path: Path, how: str) -> None:
    assert ranks.run(2, as_rank, drops, str(tmp_path), how, 2, killed=True) == [None, None]
    found = run(2, drops, str(tmp_path), how, 0)
    assert [each["code"] for each in found] == [0, 0], found[0]["err"]
    verdict = verified(found)
    assert verdict.holds, [problem.text for problem in verdict.problems]
    of_epochs = [line for line in tallies(found[0]["out"])[0] if line["rank"] == "all"]
    assert all(line["consumed"] + line["dropped"] == line["expected"] for line in of_epochs)
    if how == "buckets":
        assert [line["dropped"] for line in of_epochs] == [5, 5]
        assert f"{N - 5} " in found[0]["out"] and "5 dropped by the program, every other sample" in found[0]["out"]


def noise(how: str) -> list[tuple[int, float]]:
    """What this rank's workers draw for each sample in an epoch."""
    with Account("own", epochs=1) as account:
        loader = account.loader(Noisy(N), num_workers=1, **options(how))
        had = []
        for indices, inputs in loader:
            had += zip(indices.tolist(), inputs[:, 3].tolist(), strict=True)
            account.commit()
    return had


def test_a_sample_that_is_drawn_again_is_augmented_anew() -> None:
    found = run(2, noise, "repeated")
    had = [each for rank in found for each in rank["result"]]
    assert len(had) >= 3 * N and len({drawn for _, drawn in had}) == len(had)
    assert [each["result"] for each in run(2, noise, "repeated")] == [each["result"] for each in found]


def plans_steps() -> None:
    with Account("own", epochs=Steps(5)) as account:
        account.loader(range(N), **options("in order"))


class Told(RandomSampler):
    """It tells which epochs it was told of."""

    def __init__(self) -> None:
        super().__init__(range(N))
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


def tells() -> tuple[list[int], list[list[int]], list[float]]:
    """The epochs that a sampler is told of, its draws, and what the program's generator draws around them."""
    told, had = Told(), []
    torch.manual_seed(1)
    drawn = [float(torch.rand(()))]
    with Account("own", epochs=3) as account:
        loader = account.loader(range(N), batch_sampler=BatchSampler(told, 3, drop_last=False))
        drawn.append(float(torch.rand(())))
        for _ in account.epochs():
            had.append([])
            for batch in loader:
                had[-1] += batch.tolist()
                account.commit()
    return told.epochs, had, drawn


def test_a_sampler_is_told_of_each_epoch_and_draws_by_generators_of_its_own() -> None:
    epochs, had, drawn = alone(tells)["result"]
    assert epochs == [1, 2, 3]
    assert [sorted(each) for each in had] == [[*range(N)]] * 3
    assert had[0] != had[1] != had[2] != had[0]
    torch.manual_seed(1)
    assert drawn == [float(torch.rand(())) for _ in range(2)]


def differs(n: int, contract: str) -> None:
    with Account("own", epochs=1) as account:
        rank = dist.get_rank()
        own = {"contract": contract if rank else "exact", "batch_size": 3}
        account.loader(range(n if rank else N), sampler=range(N), **own)


class Asked:
    """A loader in the eyes of a program."""

    def __call__(self) -> list[Any]:
        sampler, batches = RandomSampler(range(N)), ByTokens(LENGTHS, 20)
        with Account("own", plan={"train": 0, "test": 0}) as account:
            one = account.loader(range(N), "train", sampler=sampler, batch_size=3)
            two = account.loader(range(N), "test", batch_sampler=batches)
            whole = sum(1 for _ in batches)
            return [
                one.sampler is sampler,
                [*map(len, one.batch_sampler)] == [3] * 7 + [2],
                (one.batch_size, len(one), len(one.dataset)) == (3, 4, N),
                two.batch_sampler is batches,
                (two.batch_size, len(two)) == (None, -(-whole // 2)),
            ]


def test_the_loader_has_what_a_dataloader_has() -> None:
    for each in run(2, Asked()):
        assert each["result"] == [True] * 5, each["err"]


def damaged(text: str, **changes: Any) -> str:
    """A log in which the line of all ranks in epoch 1 has other values."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if '"rank":"all"' in line and '"epoch":1' in line:
            before, _, values = line.partition(PREFIX)
            lines[number] = before + PREFIX + json.dumps({**json.loads(values), **changes})
    return "\n".join(lines)


@pytest.mark.parametrize("how", ["buckets", "groups"])
def test_lines_that_do_not_bear_out_the_draws_are_refuted(how: str) -> None:
    found = run(2, trains, how)
    lines = tallies(found[0]["out"])[0]
    first, second = (line for line in lines if line["rank"] == "all")
    other = next(line for line in lines if (line["rank"], line["epoch"]) == (0, 1))["digest"]
    cases: list[tuple[dict[str, Any], str]] = [
        ({"digest": other, "consumed": first["consumed"]}, "digest"),
        ({"expected": first["expected"] + 1}, "expected"),
        ({"consumed": first["consumed"] + 1}, "consumed"),
        ({"contract": "drop_last"}, "contract"),
        ({"order": "sequential"}, "contract" if how == "groups" else "order"),
        ({"start": 1}, "start"),
    ]
    if how == "groups":
        assert second["expected"] == first["expected"]
        cases += [
            ({"drawn_digest": other}, "drawn_digest"),
            ({"drawn_digest": second["drawn_digest"]}, "more times than consumed"),
            ({"contract": "exact"}, "drawn_digest"),
        ]
    for changes, named in cases:
        text = damaged(found[0]["out"], **changes)
        verdict = verified([{"out": text}, found[1]])
        assert not verdict.holds, changes
        assert any(named in problem.text for problem in verdict.problems), (changes, verdict.problems)


def weighs(how: str) -> tuple[list[float], list[list[int]]]:
    """The parameters after an epoch of mean losses under DDP, and this rank's batches, without fillers."""
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1).double()
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    had: list[list[int]] = []
    with Account("own", epochs=1) as account:
        account.optimizer(optimizer)
        loader = account.loader(range(N), **options(how))
        for batch in account.epoch("train", 1, loader):
            account.weigh(_loss(parallel, batch.data)).backward()
            optimizer.step()
            optimizer.zero_grad()
            had.append(batch.indices.tolist())
        assert len(had) == len(loader)
    return [each.item() for each in model.parameters()], had


def _loss(model: torch.nn.Module, indices: torch.Tensor) -> torch.Tensor:
    inputs = indices.double().unsqueeze(1) / N
    loss: torch.Tensor = (model(inputs) - inputs.square()).square().mean()
    return loss


@pytest.mark.parametrize("how", ["tokens", "tokens by rank", "buckets"])
def test_gradients_of_uneven_batches_are_those_of_one_process(how: str) -> None:
    found = run(3, weighs, how)
    assert [each["code"] for each in found] == [0, 0, 0], found[0]["err"]
    of_ranks = [each["result"][1] for each in found]
    steps = [[*itertools.chain(*batches)] for batches in zip(*of_ranks, strict=True)]
    assert sorted(itertools.chain(*steps)) == [*range(N)]
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in steps:
        optimizer.zero_grad()
        _loss(model, torch.tensor(step)).backward()
        optimizer.step()
    assert found[0]["result"][0] == pytest.approx([each.item() for each in model.parameters()], rel=1e-12)


def draws(cases: int) -> None:
    """Any batches, the same on all ranks or not: each is in one step of one rank, and all ranks know its rows."""
    rank, world = dist.get_rank(), dist.get_world_size()
    numbers = random.Random(0)
    for case in range(cases):
        n, count = numbers.randint(1, 30), numbers.randint(1, 12)
        of_ranks = [[numbers.choices(range(n), k=numbers.randint(1, 5)) for _ in range(count)] for _ in range(world)]
        of_ranks = [batches[numbers.randint(0, count - 1) :] for batches in of_ranks]
        if same := case % 2 == 0:
            of_ranks = [of_ranks[0]] * world
        common = {"contract": "as_drawn", "batch_size": None, "seed": 0, "rank": rank, "world": world, "leads": True}
        sampler = DrawnSampler("train", Source(n, of_ranks[rank], 0), group=None, **common)
        draw = sampler.draw(1)
        steps = [[step.indices.tolist() for step in draw.left()]]
        gathered: list[Any] = [None] * world
        dist.all_gather_object(gathered, (steps[0], [draw.drawn(step) for step in range(draw.steps + 1)]))
        if len({str(each) for each in of_ranks}) == 1:
            flat = [each for step in zip(*(own for own, _ in gathered), strict=True) for each in step]
            assert [each for each in flat if each] == of_ranks[0]
        else:
            assert not same
            assert [[each for each in own if each] for own, _ in gathered] == of_ranks
        known = gathered[0][1]
        assert all(marks == known for _, marks in gathered)
        rows = [sum(len(own[step]) for own, _ in gathered) for step in range(draw.steps)]
        assert [samples for samples, _ in known] == [0, *itertools.accumulate(rows)] and draw.batch == max(rows)
        skip = numbers.randint(0, draw.steps)
        rest = sampler.draw(1, SimpleNamespace(start=0, steps=skip, world=world, drawn=known[skip]))
        assert [step.indices.tolist() for step in rest.left()] == steps[0][skip:]
        assert [step.rows for step in rest.left()] == rows[skip:]
        assert [step.position for step in rest.left()] == [sum(rows[:step]) for step in range(skip, draw.steps)]
        assert rest.taken(skip).tolist() == [*itertools.chain(*steps[0][:skip])]
        # Another sample, or two in another order, are known from that step on.
        batches = [[*batch] for batch in of_ranks[rank]]
        batches[0] = [*batches[0][1:], batches[0][0]] if len({*batches[0]}) > 1 else [(batches[0][0] + 1) % n]
        if n > 1 or len(batches[0]) != len(of_ranks[rank][0]):
            other = DrawnSampler("train", Source(n, batches, 0), group=None, **common).draw(1)
            assert [other.drawn(step) == known[step] for step in range(draw.steps + 1)] == [True] + [False] * draw.steps


def test_steps_of_any_draw() -> None:
    for world in (1, 2, 3):
        assert [each["code"] for each in run(world, draws, 60)] == [0] * world
