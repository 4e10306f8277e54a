"""A collate_fn that drops samples says so: they count apart, on every rank and over a resume, and are never hidden."""

import contextlib
import io
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
from accounts import alone, assert_ends, run, tallied, verified
from mixtures import Numbers
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader, default_collate
from witness import Counts, Noisy, Witness

from torchtally import Account, Batch, Steps, compat
from torchtally.accounting.ledger.drops import Drops
from torchtally.accounting.ledger.state import State
from torchtally.accounting.ledger.tally import Run
from torchtally.proof import digest
from torchtally.proof.digest import Digest
from torchtally.proof.line import PREFIX
from torchtally.verifier.conclusion import summary
from torchtally.verifier.log import Log
from torchtally.verifier.verdict import judge

N, SIZE, EPOCHS = 29, 3, 2
BAD = {0, 1, 2, 3, 4, 5, 9, 20, 28}


def drops(samples: Any) -> Batch:
    """With shuffle=False, each rank has a batch of which all samples are dropped: the first."""
    bad = {index: "corrupt" if index else "empty" for index in samples.indices if index in BAD}
    kept = [sample for sample in samples if sample not in bad]
    return Batch(
        [each for each in samples.indices if each not in bad], default_collate(kept) if kept else None, dropped=bad
    )  # type: ignore[arg-type]


class Killed(Exception):
    pass


def trains(plan: Any, dies: int, options: dict[str, Any], state: Any, counts: Counts) -> Any:
    """The state after the commit of step `dies` of the first epoch, in which the loop ends."""
    with contextlib.suppress(Killed), Account(task="t", plan={"train": plan, "test": 1}) as account:
        loader = account.loader(Numbers(N), "train", batch_size=SIZE, collate_fn=drops, **options)
        if state:
            account.load_state_dict(json.loads(state))
        for epoch in account.epochs():
            for batch in account.epoch("train", epoch, loader):
                counts.step(batch.data)
                account.commit()
                if batch.step == dies:
                    state = json.dumps(account.state_dict())
                    raise Killed
        test = account.loader(Numbers(N), "test", batch_size=SIZE, collate_fn=drops, trains=False)
        seen = [index for batch in account.epoch("test", 1, test) for index in batch.data.tolist()]
        assert not {*seen} & BAD
    return state


def resumes(plan: Any, options: dict[str, Any]) -> list[Any]:
    counts = Counts(N)
    before = trains(plan, 1, options, None, counts)
    twice = trains(plan, 2, options, before, counts)
    after = trains(plan, 0, options, twice, counts)
    return [counts.times, twice, after]


ONCE = "✓ 9 dropped by the program, every other sample exactly once"


@pytest.mark.parametrize(
    ("world", "options"),
    [(1, {}), (2, {"shuffle": False, "num_workers": 1}), pytest.param(2, {}, marks=pytest.mark.nightly)],
    ids=str,
)
def test_what_is_dropped_is_known_over_resumes_and_the_rest_is_in_the_weights(world: int, options: Any) -> None:
    found = run(world, resumes, EPOCHS, options)
    for each in found:
        times, twice, _ = each["result"]
        assert each["code"] == 0, each["err"]
        assert times == [EPOCHS * (index not in BAD) for index in range(N)]
        assert twice == found[0]["result"][1]  # the same on every rank
    verdict = verified(found)
    assert verdict.holds, verdict.problems
    assert verdict.last and verdict.last.phases["train"].dropped == EPOCHS * len(BAD)
    assert verdict.last.phases["train"].dropped_in == ((EPOCHS, len(BAD)),)
    assert "; dropped by the program: 18 samples of train, 9 samples of test" in summary(verdict)
    out = found[0]["out"]
    assert "every sample exactly once" not in out and out.count(ONCE) == EPOCHS + 1
    every = "".join(each["err"] for each in found)
    for index in BAD:
        assert f"the program drops sample {index}: {'corrupt' if index else 'empty'}" in every


def fills_the_store() -> list[int]:
    """Keys of the job's store in the first epoch, and after each."""
    counts, keys = Counts(N), []
    with Account(task="drops", plan={"train": EPOCHS}) as account:
        loader = account.loader(Numbers(N), "train", batch_size=SIZE, collate_fn=drops)
        for epoch in account.epochs():
            for batch in account.epoch("train", epoch, loader):
                counts.step(batch.data)
                if (epoch, batch.step) == (1, batch.steps):
                    keys.append(compat.default_store().num_keys())
                account.commit()
            keys.append(compat.default_store().num_keys())
    return keys


def test_what_is_dropped_leaves_the_store_with_its_epoch() -> None:
    within, after_first, after_second = alone(fills_the_store)["result"]
    assert after_first < after_second < within


def test_a_rank_ends_its_last_epoch_though_the_store_has_ended_before(monkeypatch: pytest.MonkeyPatch) -> None:
    port = ranks.free_port()
    if not (rank_0 := os.fork()):
        store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
        store.set("here", "")
        signal.pause()
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    monkeypatch.setattr(compat, "default_store", lambda: store)
    of = Run(run="r", attempt=0, pod="p", task="t", plan={"train": 1}, rank=1, world=2, seed=0, data="d")
    dropped = Drops(of, "train", 1, Digest())
    dropped.post(1, Digest())
    os.kill(rank_0, signal.SIGKILL)
    os.waitpid(rank_0, 0)
    dropped.end()


def ends() -> None:
    counts = Counts(N)
    for plan, contract in ((Steps(13), "exact"), (1, "padded"), (1, "drop_last")):
        with Account(task=f"{contract}", plan={"train": plan}) as account:
            options = {"collate_fn": drops, "contract": contract, "shuffle": False}
            loader = account.loader(Numbers(N), "train", batch_size=1, **options)
            for epoch in account.epochs():
                for batch in account.epoch("train", epoch, loader):
                    counts.step(batch.data)
                    account.commit()


def drops_noise(samples: Any) -> Batch:
    """Drops every tenth sample."""
    bad = dict.fromkeys((index for index in samples.indices if index % 10 == 3), "corrupt")
    kept = [sample for sample in samples if sample[0] not in bad]
    return Batch([index for index, _ in kept], default_collate(kept), dropped=bad)  # type: ignore[arg-type]


def learns(dies: int, state: Any, saved: bytes) -> Any:
    """Train with dropout, up to the commit of step `dies` of the first epoch."""
    training = Witness(N)
    if saved:
        training.load(saved)
    with contextlib.suppress(Killed), Account(task="t", plan={"train": EPOCHS}) as account:
        loader = account.loader(Noisy(N), "train", batch_size=SIZE, collate_fn=drops_noise)
        if state:
            account.load_state_dict(state)
        for epoch in account.epochs():
            for batch in account.epoch("train", epoch, loader):
                training.backward(*batch.data)
                training.step()
                account.commit()
                if batch.step == dies:
                    state = account.state_dict()
                    raise Killed
    return state, training.save(), training.sha256


def goes_on(dies: int) -> list[str]:
    state, saved, _ = learns(dies, None, b"")
    return [learns(0, None, b"")[2], learns(0, state, saved)[2]]


def test_a_resume_of_the_same_ranks_ends_with_the_same_bits_though_samples_are_dropped() -> None:
    for each in run(2, goes_on, 3):
        undisturbed, resumed = each["result"]
        assert resumed == undisturbed


def test_other_contracts_and_ends_name_what_is_dropped_as_well() -> None:
    found = run(3, ends)
    assert [each["code"] for each in found] == [0] * 3, found[0]["err"]
    verdicts = [line.partition("  ✓ ")[2] for line in found[0]["out"].splitlines() if "✓" in line]
    assert verdicts == [
        "9 dropped by the program, every other sample exactly once",
        "6 dropped by the program of the first 9 samples of the order, the others exactly once",
        "10 dropped by the program, every other sample at least once, 1 repeated",
        "8 dropped by the program, no sample twice, 2 left out",
    ]
    for name in {line["run"] for line in tallied(found[0]["out"])}:
        assert verified(found, name=name).holds


def fetches_ahead() -> int:
    with contextlib.suppress(Killed), Account(task="t", plan={"train": 1}) as account:
        options = {"batch_size": SIZE, "shuffle": False, "collate_fn": drops}
        batches = account.epoch("train", 1, account.loader(Numbers(N), "train", **options))
        first, _second = next(batches), next(batches)
        account.commit(first)
        state = State.from_text(account.state_dict()["torchtally"])
        raise Killed
    position = state.phases["train"].position
    assert position and position.dropped
    return digest.unpack(position.dropped).words[0]


def test_a_state_has_what_is_dropped_in_its_steps_and_not_what_was_fetched_ahead() -> None:
    assert alone(fetches_ahead)["result"] == 3


# What is not dropped as the batch says is not proved, or is refused.


def both(samples: Any) -> Batch:
    return Batch(samples.indices, torch.tensor(samples), dropped={samples[0]: "corrupt"})


def foreign(samples: Any) -> Batch:
    return Batch(samples.indices, torch.tensor(samples), dropped={(samples[0] + SIZE) % N: "corrupt"})


def silent(samples: Any) -> Batch:
    return Batch(samples.indices[2:], torch.tensor(samples[2:]), dropped={samples[0]: "corrupt"})


def without_reason(samples: Any) -> Batch:
    return Batch(samples.indices[1:], torch.tensor(samples[1:]), dropped={samples[0]: ""})


def as_a_list(samples: Any) -> Batch:
    return Batch(samples.indices[1:], torch.tensor(samples[1:]), dropped=samples[:1])


def as_text(samples: Any) -> Batch:
    return Batch(samples.indices[1:], torch.tensor(samples[1:]), dropped={str(samples[0]): "corrupt"})  # type: ignore[dict-item]


def everything(samples: Any) -> Batch:
    return Batch([], None, dropped=dict.fromkeys(samples, "corrupt"))  # type: ignore[arg-type]


WRONG = [
    (both, 3, "step 1 of 10 is not proved: the batch has sample 0 too many"),
    (foreign, 3, "the batch drops sample 3, not of this step"),
    (silent, 3, "the batch lacks sample 1"),
    (without_reason, 2, '"reason of dropped sample 0" is "", allowed is printable text'),
    (as_a_list, 2, "must be a mapping of index to reason, and are a list"),
    (as_text, 2, "must be whole numbers, and one is '0'"),
    (everything, 2, "the collate_fn drops all of the first 29 samples, so that no empty batch can be made"),
]


def collates(collate: Any) -> None:
    with Account(task="t", plan={"train": 1}) as account:
        loader = account.loader(Numbers(N), "train", batch_size=SIZE, shuffle=False, collate_fn=collate)
        for _ in account.epoch("train", 1, loader):
            account.commit()


def test_other_drops_than_those_of_the_step_are_an_error(subtests: pytest.Subtests) -> None:
    assert_ends(subtests, 1, [((collates, collate), code, said) for collate, code, said in WRONG])


# A loader of one's own, and lines that say something else.


def pairs(samples: list[tuple[int, int]]) -> Batch:
    kept = torch.tensor([index for index, _ in samples if index not in BAD], dtype=torch.int64)
    return Batch(kept, kept, dropped={index: "corrupt" for index, _ in samples if index in BAD})


def by_own_loader() -> list[int]:
    counts = Counts(N)
    with Account(task="t", plan={"train": 1}) as account:
        sampler = account.sampler("train", N, batch_size=SIZE)
        own = DataLoader([(index, index) for index in range(N)], SIZE, sampler=sampler, collate_fn=pairs)  # type: ignore[arg-type]
        for batch in account.epoch("train", 1, own):
            counts.step(batch.data)
            account.commit()
    return counts.times


@pytest.fixture(scope="module")
def single() -> dict[str, Any]:
    return alone(by_own_loader)


def test_a_loader_of_ones_own_may_drop_as_well(single: dict[str, Any]) -> None:
    assert single["result"] == [index not in BAD for index in range(N)], single["err"]
    assert ONCE in single["out"]
    assert verified([single]).holds


def with_peers(state: Any) -> Any:
    """Two ranks that consume the same samples, as tensor-parallel ones do: the state after step 2, or the rest."""
    group = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))["dp"].get_group()
    with contextlib.suppress(Killed), Account(task="t", plan={"train": 1}, group=group) as account:
        loader = account.loader(Numbers(N), "train", batch_size=SIZE, collate_fn=drops)
        if state:
            account.load_state_dict(state)
        for batch in account.epoch("train", 1, loader):
            dist.barrier()  # as the collective calls of a step do
            account.commit()
            if batch.step == 4 and not state:
                state = account.state_dict()
                raise Killed
    return state


def test_peers_drop_a_sample_once() -> None:
    killed = run(2, with_peers, None)
    assert killed[0]["result"] == killed[1]["result"], killed
    found = run(2, with_peers, killed[0]["result"])
    assert [each["code"] for each in found] == [0, 0], found[0]["err"]
    assert ONCE in found[0]["out"]
    assert verified(killed + found).holds


def changed(out: str, which: Any, **values: Any) -> str:
    """The log with these values in the lines of a rank, in the last line, or in all of these."""
    lines = []
    for text in out.splitlines():
        if PREFIX in text:
            line = json.loads(text.partition(PREFIX)[2])
            targets: Iterator[Any] = (each for each in (line, *line.get("phases", {}).values()) if "dropped" in each)
            if which in ("every", line.get("rank", "last")):
                for target in targets:
                    target.update(values)
                    for name in [name for name, value in values.items() if value is None]:
                        del target[name]
            text = PREFIX + json.dumps(line)
        lines.append(text)
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("which", "values"),
    [
        ("every", {"dropped": None, "dropped_digest": None}),
        ("every", {"dropped": 8}),
        ("every", {"dropped": None}),
        ("every", {"dropped_digest": None}),
        ("every", {"consumed": N}),
        ("all", {"dropped": None, "dropped_digest": None, "consumed": N}),
        (0, {"dropped": 10, "consumed": N - 10}),
        ("last", {"dropped": None, "dropped_digest": None}),
        ("last", {"dropped": 10, "consumed": N - 10}),
        ("last", {"dropped": None, "consumed": N}),
    ],
    ids=str,
)
def test_lines_that_say_otherwise_prove_nothing(single: dict[str, Any], which: Any, values: dict[str, Any]) -> None:
    out = changed(single["out"], which, **values)
    assert changed(single["out"], which) != out
    assert not verified([{"out": out}]).holds


@pytest.mark.parametrize(
    "values",
    [
        {"dropped": None, "consumed": N},
        {"dropped": None, "dropped_digest": None},
        {"dropped": None, "dropped_digest": None, "consumed": N},
        {"dropped_digest": None},
        {"dropped": 1},
        {"dropped": 10, "consumed": N - 10},
    ],
    ids=str,
)
def test_a_last_line_that_says_otherwise_proves_nothing(single: dict[str, Any], values: dict[str, Any]) -> None:
    last = next(text for text in single["out"].splitlines() if '"phase":"all"' in text)
    assert verified([{"out": last}]).holds
    assert not verified([{"out": changed(last, "last", **values)}]).holds


def drops_less_later() -> None:
    """In four epochs, of which the third drops nothing."""
    counts = Counts(N)
    with Account(task="t", plan={"train": 4}) as account:
        dataset = [torch.tensor(index) for index in range(N)]
        batches = [lambda samples, bad=bad: kept_but(samples, bad) for bad in ((3, 4), (5, 6), (), (7,))]
        loader = account.loader(dataset, "train", batch_size=SIZE, collate_fn=lambda samples: batches[at[0]](samples))
        at = [0]
        for epoch in account.epochs():
            at[0] = epoch - 1
            for batch in account.epoch("train", epoch, loader):
                counts.step(batch.data)
                account.commit()


def kept_but(samples: Any, bad: tuple[int, ...]) -> Batch:
    kept = [index for index in samples.indices if index not in bad]
    dropped = {index: "corrupt" for index in samples.indices if index in bad}
    return Batch(kept, torch.tensor(kept, dtype=torch.int64), dropped=dropped)


@pytest.fixture(scope="module")
def several() -> str:
    found = alone(drops_less_later)
    assert found["code"] == 0, found["err"]
    assert verified([found]).holds
    return next(text for text in found["out"].splitlines() if '"phase":"all"' in text)


@pytest.mark.parametrize(
    "values",
    [
        {"dropped": 6, "consumed": 4 * N - 6},
        {"dropped": 6, "consumed": 4 * N - 6, "dropped_in": [[3, 2], [1, 0]]},
        {"dropped_in": [[1, 1], [1, 3], [1, 0], [1, 1]]},
        {"dropped_in": [[2, 2], [1, 1], [1, 0]]},
        {"dropped_in": [[2, 2], [1, 0], [1, 1], [1, 0]]},
        {"dropped_in": [[2, 2], [1, 0]]},
        {"dropped_in": []},
        {"dropped_in": [[2, 2], [1, 0], [1, -1]]},
        {"dropped": None, "dropped_digest": None},
    ],
    ids=str,
)
def test_the_last_line_alone_binds_what_several_epochs_have_dropped(several: str, values: dict[str, Any]) -> None:
    assert json.loads(several.partition(PREFIX)[2])["phases"]["train"]["dropped_in"] == [[2, 2], [1, 0], [1, 1]]
    assert verified([{"out": several}]).holds
    log = Log()
    log.read("rank-0.log", io.StringIO(changed(several, "last", **values)))
    assert not all(verdict.holds for verdict in judge(log)) or not judge(log)
