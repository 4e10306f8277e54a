"""A loop whose weights have not seen every sample exactly once gets no ✓, and one whose have gets one.

`Witness` is the witness: its parameter counts how often each sample is in the weights, without the tally.
"""

import contextlib
import itertools
import json
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from accounts import alone, in_turn, run, tallied, verified
from messages import plain
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader, random_split
from witness import Direct, Noisy, Witness

from torchtally import Account, Batch
from torchtally.accounting.ledger.tally import Phase, Run, Tally
from torchtally.accounting.proofs.proving import prove
from torchtally.errors import Refused, Unproven

N, SIZE = 30, 4


def trains(drive: Callable[[Account, Iterator[Batch], Witness], None], epochs: int = 1) -> list[int]:
    training = Witness(N)
    with Account(task="t", plan={"train": epochs}) as account:
        loader = account.loader(Noisy(N), "train", batch_size=SIZE)
        for epoch in account.epochs():
            drive(account, account.epoch("train", epoch, loader), training)
    return training.times


def step(training: Witness, *batches: Batch) -> None:
    for batch in batches:
        training.backward(*batch.data)
    training.step()


# Ranks whose weights are not those of one training.


def trains_apart(folder: str) -> None:
    """Each rank has the samples of its own shard alone, and the last commit is followed by the run's end."""
    training = Witness(N)
    with Account(task="t", plan={"train": 1}) as account:
        loader = account.loader(Noisy(N), "train", batch_size=SIZE)
        checkpoints = account.checkpoints(folder, {"counts": training.counts}, every=32400)
        checkpoints.resume()
        for batch in account.epoch("train", 1, loader):
            training.counts.weight.data[batch.data[0]] += 1
            account.commit()
        checkpoints.save(wait=False)


def test_a_run_ends_without_its_last_line_if_its_only_checkpoint_shows_other_weights(tmp_path: Path) -> None:
    for found in run(2, trains_apart, str(tmp_path)):
        assert found["code"] == 2
        assert "ranks 0 and 1 have different values of counts.weight" in found["err"]
        assert [line for line in tallied(found["out"]) if line["phase"] == "all"] == []


# Loops that lose samples.


def stops_early(account: Account, batches: Iterator[Batch], training: Witness) -> None:
    for batch in islice(batches, 5):
        step(training, batch)
        account.commit()


def forgets_the_last_accumulation(account: Account, batches: Iterator[Batch], training: Witness) -> None:
    for number, batch in enumerate(batches, start=1):
        training.backward(*batch.data)
        if number % 3 == 0:
            training.step()
            account.commit()


def commits_once_at_the_end(account: Account, batches: Iterator[Batch], training: Witness) -> None:
    every = list(batches)
    step(training, *every)
    account.commit()


def never_commits(account: Account, batches: Iterator[Batch], training: Witness) -> None:
    for batch in batches:
        step(training, batch)


LOSES: list[tuple[Any, str]] = [
    (stops_early, "10 were lost and 0 duplicated (ranks whose shard was wrong: 0): the loop left the epoch in step 5"),
    (forgets_the_last_accumulation, "6 of the 8 batches that were handed out are committed"),
    (never_commits, "0 of the 8 batches that were handed out are committed"),
]


def test_a_loop_that_loses_samples_is_not_proved(subtests: pytest.Subtests) -> None:
    for (drive, said), [found] in zip(LOSES, in_turn(1, ((trains, drive) for drive, _ in LOSES)), strict=True):
        with subtests.test(drive.__name__):
            assert found["code"] in (2, 3), found["err"]
            assert said in found["err"]
            assert not verified([found]).holds


def steps_without_gradients(account: Account, batches: Iterator[Batch], training: Witness) -> None:
    optimizer = Direct(training.counts.weight)
    for batch in batches:
        optimizer.rows = batch.data[0]
        optimizer.step()
        account.commit()


# Loops that lose none.


def takes_by_hand(account: Account, batches: Iterator[Batch], training: Witness) -> None:
    while True:
        batch = next(batches)
        step(training, batch)
        account.commit()
        if batch.step == batch.steps:
            return


def takes_all_of_a_slice(account: Account, batches: Iterator[Batch], training: Witness) -> None:
    for batch in islice(batches, 8):
        step(training, batch)
        account.commit()


def zips(account: Account, batches: Iterator[Batch], training: Witness) -> None:
    for batch, _ in zip(batches, range(8), strict=False):
        step(training, batch)
        account.commit()


def accumulates(account: Account, batches: Iterator[Batch], training: Witness) -> None:
    for batch in batches:
        training.backward(*batch.data)
        if batch.step % 3 == 0 or batch.step == batch.steps:
            training.step()
            account.commit()


def fetches_ahead_and_says_so(account: Account, batches: Iterator[Batch], training: Witness) -> None:
    held = next(batches)
    for following in chain(batches, [None]):
        step(training, held)
        account.commit(held)
        held = following


def packs_and_says_so(account: Account, batches: Iterator[Batch], training: Witness) -> None:
    """One backward pass for a batch, or for two."""
    for batch in batches:
        held = [batch, next(batches)] if batch.step in (2, 5) else [batch]
        data = zip(*(each.data for each in held), strict=True)
        training.backward(*(torch.cat(parts) for parts in data))
        training.step()
        account.commit(*held)


LOOPS = [
    takes_by_hand,
    takes_all_of_a_slice,
    zips,
    accumulates,
    fetches_ahead_and_says_so,
    packs_and_says_so,
    commits_once_at_the_end,
]


def alternates() -> tuple[list[int], list[int]]:
    """Two data sets at a time, as a GAN has them: the second in pairs of batches."""
    real, noise = Witness(N), Witness(N)
    with Account(task="t", plan={"real": 1, "noise": 1}) as account:
        loaders = [account.loader(Noisy(N), phase, batch_size=SIZE) for phase in ("real", "noise")]
        for one, other in zip(account.epoch("real", 1, loaders[0]), account.epoch("noise", 1, loaders[1]), strict=True):
            step(real, one)
            account.commit(one)
            noise.backward(*other.data)
            if other.step % 2 == 0:
                noise.step()
                account.commit(other)
    return real.times, noise.times


def steps_in_one_of_two_phases() -> tuple[list[int], list[int]]:
    """The second phase has neither backward passes nor an optimizer, as a running statistic."""
    trained, seen = Witness(N), [0] * N
    with Account(task="t", plan={"train": 2, "statistic": 2}) as account:
        loaders = {phase: account.loader(Noisy(N), phase, batch_size=SIZE) for phase in account.plan}
        for epoch in account.epochs():
            for batch in account.epoch("train", epoch, loaders["train"]):
                step(trained, batch)
                account.commit()
            for batch in account.epoch("statistic", epoch, loaders["statistic"]):
                for index in batch.indices.tolist():
                    seen[index] += 1
                account.commit()
    return trained.times, seen


RIGHT = [
    *(((trains, drive, 2), [2] * N) for drive in LOOPS),
    ((trains, steps_without_gradients), [1] * N),
    ((alternates,), ([1] * N, [1] * N)),
    ((steps_in_one_of_two_phases,), ([2] * N, [2] * N)),
]


def test_a_loop_that_loses_none_is_proved(subtests: pytest.Subtests) -> None:
    for (case, times), [found] in zip(RIGHT, in_turn(1, (case for case, _ in RIGHT)), strict=True):
        with subtests.test(str(case)):
            assert (found["code"], found["result"]) == (0, times), found["err"]
            assert verified([found]).holds


def evaluates(how: str) -> None:
    with Account(task="t", plan={"test": 1}) as account:
        loader = account.loader(Noisy(N), "test", batch_size=SIZE, trains=False)
        batches, last = account.epoch("test", 1, loader), -(-N // SIZE) - 1
        if how == "zip":
            for _ in zip(batches, range(last), strict=False):
                pass
        else:
            for number, _ in enumerate(batches):
                if number == last and how == "break":
                    break


def trains_where_nothing_is_committed() -> list[int]:
    training = Witness(N)
    with Account(task="t", plan={"train": 1}) as account:
        for optimizer in training.optimizers:
            account.optimizer(optimizer)
        loader = account.loader(Noisy(N), "train", batch_size=SIZE, trains=False)
        for batch in account.epoch("train", 1, loader):
            if batch.step != 4:
                step(training, batch)
    return training.times


def trains_its_evaluation(last: str) -> None:
    """The only batch of the evaluation, after a last batch of the training that no step uses."""
    training = Witness(N)
    optimizer = torch.optim.SGD([*training.counts.parameters(), *training.model.parameters()], lr=0.1)
    with Account(task="t", plan={"train": 1, "test": 1}) as account:
        account.optimizer(optimizer)
        for step, batch in enumerate(account.loader(Noisy(N), "train", batch_size=SIZE), 1):
            is_last = step * SIZE >= N
            (account.weigh(training.loss(*batch)) * (0 if is_last and last == "zero" else 1)).backward()
            if not is_last:
                optimizer.step()
            optimizer.zero_grad()
        for batch in account.loader(Noisy(SIZE), "test", batch_size=SIZE, trains=False):
            training.loss(*batch).backward()
            optimizer.step()


def weighs_its_evaluation() -> None:
    """A loss without a name must not be taken for another one of the last batch of the training."""
    training = Witness(N)
    optimizer = torch.optim.SGD([*training.counts.parameters(), *training.model.parameters()], lr=0.1)
    with Account(task="t", plan={"train": 1, "test": 1}) as account:
        account.optimizer(optimizer)
        for loader in (
            account.loader(Noisy(N), "train", batch_size=SIZE),
            account.loader(Noisy(SIZE), "test", batch_size=SIZE, trains=False),
        ):
            for batch in loader:
                account.weigh(training.loss(*batch)).backward()
                optimizer.step()
                optimizer.zero_grad()


def stops_twice() -> None:
    """A batch that has its step between two stops would count, and the last line would say what the first one knew."""
    training = Witness(N)
    with Account(task="t", plan={"train": 1}) as account:
        for optimizer in training.optimizers:
            account.optimizer(optimizer)
        for step, batch in enumerate(account.loader(Noisy(N), "train", batch_size=SIZE), 1):
            account.weigh(training.loss(*batch)).backward()
            if step == 3:
                account.stop("first")
            training.step()
            if step == 3:
                account.stop("second")


def reads_an_optimizer_while_it_evaluates() -> None:
    """PyTorch makes a step at a learning rate of 0 to read the state of an optimizer that has none."""
    training = Witness(N)
    optimizer = training.optimizers[0]
    with Account(task="t", plan={"train": 1, "test": 1}) as account:
        account.optimizer(optimizer)
        for _ in account.loader(Noisy(N), "test", batch_size=SIZE, trains=False):
            get_optimizer_state_dict(training.counts, optimizer)
        for batch in account.loader(Noisy(N), "train", batch_size=SIZE):
            account.weigh(training.loss(*batch)).backward()
            optimizer.step()
            optimizer.zero_grad()


def mixes_up(own: bool) -> None:
    """Two data sets of one length have one order, so the batches of one have the indices of the other."""
    with Account(task="t", plan={"real": 1, "noise": 1}) as account:
        if own:
            pairs = [(index, index) for index in range(N)]
            samplers = [account.sampler(phase, N, batch_size=SIZE) for phase in ("real", "noise")]
            loaders = [DataLoader(pairs, batch_size=SIZE, sampler=sampler) for sampler in samplers]  # type: ignore[arg-type]
        else:
            loaders = [account.loader(Noisy(N), phase, batch_size=SIZE) for phase in ("real", "noise")]
        for phase in ("real", "noise"):
            for _ in account.epoch(phase, 1, loaders[0]):
                account.commit()


NO_STEPS = "an optimizer has stepped in train epoch 1, whose loader or sampler has trains=False"
MIXED_UP = "noise: the batches are those of the phase real: pass the loader of noise"
EVALUATIONS: list[tuple[Any, int, str]] = [
    ((evaluates, "zip"), 3, "the loop left the epoch in step 8 of 8"),
    ((evaluates, "break"), 3, "the loop left the epoch in step 8 of 8"),
    ((evaluates, "all"), 0, ""),  # it has asked for another batch
    ((trains_where_nothing_is_committed,), 2, NO_STEPS),
    ((trains_its_evaluation, "cleared"), 2, NO_STEPS.replace("train", "test", 1)),
    ((trains_its_evaluation, "zero"), 2, NO_STEPS.replace("train", "test", 1)),
    ((weighs_its_evaluation,), 2, "step 1 of 1: the losses of a phase that weigh() receives need a loader"),
    ((reads_an_optimizer_while_it_evaluates,), 0, ""),
    ((mixes_up, False), 2, MIXED_UP),
    ((mixes_up, True), 2, MIXED_UP),
]


def test_an_evaluation_counts_to_its_last_batch_and_has_no_steps(subtests: pytest.Subtests) -> None:
    for (case, code, said), [found] in zip(EVALUATIONS, in_turn(1, (case for case, *_ in EVALUATIONS)), strict=True):
        with subtests.test(str(case)):
            assert found["code"] == code, found["err"]
            assert said in found["err"]
            assert verified([found]).holds == (code == 0)


def test_a_batch_that_has_its_step_between_two_stops_is_no_proof() -> None:
    [[found]] = in_turn(1, [(stops_twice,)])
    assert found["code"] == 3, found["err"]


# Ranks that differ.


def shares_with_peers() -> list[int]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    training = Witness(N)
    with Account(task="t", plan={"train": 1}, group=mesh["dp"].get_group()) as account:
        for batch in account.epoch("train", 1, account.loader(Noisy(N), "train", batch_size=SIZE)):
            training.backward(*batch.data)
            training.step(mesh["dp"].get_group())
            account.commit()
    return training.times


def test_ranks_of_a_tensor_parallel_group_count_once() -> None:
    found = run(4, shares_with_peers)
    for each in found:
        assert each["code"] == 0, each["err"]
        assert each["result"] == [1] * N
    assert [(line["rank"], line["world"], line["consumed"]) for line in found[0]["lines"]] == [
        (0, 2, 15),
        ("all", 2, 30),
    ]
    assert sum(len(each["lines"]) for each in found) == 3
    assert verified(found).holds


def peer(indices: list[list[int]]) -> str:
    """A rank that is the only one of its data-parallel group, with the same rank 0 as the other."""
    rank = dist.get_rank()
    place = Run(run="r", attempt=0, pod=f"pod-{rank}", task="t", plan={"train": 1}, rank=0, world=1, seed=0, data="d")
    phase = Phase(name="train", epoch=1, n=4, batch=2, contract="exact", order="sequential")
    tally = Tally(place, phase)
    tally.record(np.array(indices[rank]))
    try:
        prove(tally, leads=rank == 0)
    except Unproven as sentence:
        return str(sentence)
    return ""


@pytest.mark.parametrize("theirs", [[0, 1, 2], [0, 1, 3, 3]])
def test_peers_that_have_consumed_other_samples_are_not_proved(theirs: list[int]) -> None:
    for each in run(2, peer, [[0, 1, 2, 3], theirs]):
        assert plain(each["result"]) == (
            "train epoch 1 is not proved: pod-1 and pod-0 are data-parallel rank 0 and have consumed different samples"
        )


def splits_at_random() -> None:
    """Each rank draws its own 30 of 40 samples, as `random_split` does without a seed."""
    chosen, _ = random_split(Noisy(40), [N, 40 - N], torch.Generator().manual_seed(dist.get_rank()))
    with Account(task="t", plan={"train": 1}) as account:
        for _ in account.epoch("train", 1, account.loader(chosen, "train", batch_size=SIZE)):
            account.commit()


def test_ranks_that_draw_their_samples_apart_are_refused() -> None:
    for each in run(2, splits_at_random):
        assert each["code"] == 2, each["out"]
        assert "has data of train noisy at sha256:" in each["err"]


# The process group of the program.


def beside_a_busy_group() -> None:
    """Rank 0's other thread is in a collective call of the default group while the epoch is proved."""
    found: list[Any] = [None, None]
    exchange = threading.Thread(target=dist.all_gather_object, args=(found, dist.get_rank()))
    if dist.get_rank() == 0:
        exchange.start()
    with Account(task="t", plan={"train": 1}) as account:
        for _ in account.epoch("train", 1, account.loader(Noisy(N), "train", batch_size=SIZE)):
            account.commit()
    if dist.get_rank() == 1:
        exchange.start()
    exchange.join()
    assert found == [0, 1]


def test_a_proof_does_not_meet_the_collectives_of_another_thread() -> None:
    found = run(2, beside_a_busy_group)
    assert [each["code"] for each in found] == [0, 0], found
    assert verified(found).holds


# Names and numbers that a line cannot hold, and changes within a run.


def odd(how: str) -> None:
    given = {"task": "t", "plan": {"train": 2}, "seed": 0}
    change = {
        "seed": {"seed": 1 << 64},
        "task": {"task": "a\nb"},
        "phase": {"plan": {"train": 2, "a\nb": 0}},
    }
    with Account(**{**given, **change.get(how, {})}) as account:
        data = Noisy(N)
        if how == "fingerprint":
            data.fingerprint = "a\nb"
        loader = account.loader(data, "train", batch_size=SIZE)
        for _ in account.epoch("train", 1, loader):
            account.commit()
        match how:
            case "n":
                loader = account.loader(Noisy(N + 1), "train", batch_size=SIZE)
            case "new fingerprint":
                data.fingerprint = "other"
                loader = account.loader(data, "train", batch_size=SIZE)
            case "contract":
                loader = account.loader(data, "train", batch_size=SIZE, contract="padded")
            case "batch":
                loader = account.loader(data, "train", batch_size=SIZE + 1)
        for _ in account.epoch("train", 2, loader):
            account.commit()


ODD = [
    ("seed", 2, '"seed" is 18446744073709551616, allowed is an integer from 0 to'),
    ("task", 2, '"task" is "a\\nb", allowed is printable text'),
    ("phase", 2, "an object that gives each phase, named by printable text, its number of epochs"),
    ("fingerprint", 2, 'train: "data" is "a\\nb", allowed is printable text'),
    ("n", 2, "train: its number of samples was 30 in this run, and now it is 31"),
    ("new fingerprint", 2, "train: its data was noisy in this run, and now it is other"),
    ("contract", 2, "train: its contract was exact in this run, and now it is padded"),
    ("batch", 0, ""),
]


def test_what_the_verifier_would_refuse_is_refused_before(subtests: pytest.Subtests) -> None:
    for (how, code, said), [found] in zip(ODD, in_turn(1, ((odd, how) for how, *_ in ODD)), strict=True):
        with subtests.test(how):
            assert found["code"] == code, found["err"]
            assert said in found["err"]
            assert code or verified([found]).holds


def folds() -> None:
    """Two accounts in a process, as cross-validation has them."""
    for _ in range(2):
        with Account(task="t", plan={"train": 1}) as account:
            for _ in account.epoch("train", 1, account.loader(Noisy(N), "train", batch_size=SIZE)):
                account.commit()


def test_two_accounts_of_a_process_are_two_runs() -> None:
    found = run(2, folds)
    assert [each["code"] for each in found] == [0, 0], found
    runs = dict.fromkeys(line["run"] for line in tallied(found[0]["out"]))
    assert list(runs) == ["drawn by 0", "drawn by 0.2"]
    for name in runs:
        assert verified(found, name=name).holds


# Restarts.


def restarts(environment: dict[str, str], anew: bool, finishes: bool = True) -> None:
    os.environ.update(environment)
    with Account(task="t", plan={"train": 1}, anew=anew) as account:
        for _ in account.epoch("train", 1, account.loader(Noisy(N), "train", batch_size=SIZE)):
            if not finishes:
                raise SystemExit(9)
            account.commit()


def test_a_restart_by_the_agent_that_loads_no_state_is_refused_or_begins_anew() -> None:
    again = {"TORCHELASTIC_RESTART_COUNT": "1"}
    refused = alone(restarts, again, False)
    assert refused["code"] == 2
    assert "this start has not loaded its state: call load_state_dict()" in refused["err"]
    assert not refused["lines"]
    found = alone(restarts, again, True)
    assert found["code"] == 0, found["err"]
    assert {line["attempt"] for line in tallied(found["out"])} == {1}


def test_a_restart_of_a_pod_is_known_by_the_record_in_its_output(tmp_path: Path) -> None:
    place = {"TORCHTALLY_OUTPUT": str(tmp_path), "TORCHTALLY_RUN": "first"}
    assert alone(restarts, place, False, False)["code"] == 9
    refused = alone(restarts, place | {"TORCHTALLY_RUN": "second"}, False)
    assert refused["code"] == 2
    assert f"only if the weights begin anew, too, pass anew=True, or delete {tmp_path}/run.json" in refused["err"]
    found = alone(restarts, place | {"TORCHTALLY_RUN": "third"}, True)
    assert found["code"] == 0, found["err"]
    assert {(line["run"], line["attempt"]) for line in tallied(found["out"])} == {("first", 1)}
    later = alone(restarts, place | {"TORCHTALLY_RUN": "fourth"}, False)  # the run is complete: another may begin
    assert later["code"] == 0, later["err"]
    assert {(line["run"], line["attempt"]) for line in tallied(later["out"])} == {("fourth", 0)}


def left_out(folder: str, first: int, dies: bool) -> None:
    """Trains the folds from `first` on; the last of three dies."""
    os.environ["TORCHTALLY_OUTPUT"] = folder
    for fold in range(first, 4):
        with Account(task=f"fold-{fold}", plan={"train": 1}) as account:
            for _ in account.epoch("train", 1, account.loader(Noisy(N), "train", batch_size=SIZE)):
                if dies and fold == 3:
                    raise SystemExit(9)
                account.commit()


def test_a_fold_is_known_where_a_restart_leaves_out_those_before_it(tmp_path: Path) -> None:
    assert alone(left_out, str(tmp_path), 1, True)["code"] == 9
    for first in (3, 2, 1):
        refused = alone(left_out, str(tmp_path), first, False)
        assert refused["code"] == 2, refused["err"]
        assert f"delete {tmp_path}/run-3.json" in refused["err"]


def of_one_name(folder: str, first: int, dies: bool) -> None:
    """Trains two folds of one name from `first` on, beside another account; the second dies."""
    os.environ["TORCHTALLY_OUTPUT"] = folder
    for fold in range(first, 3):
        with Account(task="fold", plan={"train": 1}) as account, Account(task="fold", plan={"other": 0}):
            for _ in account.epoch("train", 1, account.loader(Noisy(N), "train", batch_size=SIZE)):
                if dies and fold == 2:
                    raise SystemExit(9)
                account.commit()


def test_a_fold_with_the_name_of_a_complete_one_is_known(tmp_path: Path) -> None:
    assert alone(of_one_name, str(tmp_path), 1, True)["code"] == 9
    refused = alone(of_one_name, str(tmp_path), 2, False)
    assert refused["code"] == 2, refused["err"]
    assert "run drawn by 0.3 of fold is not complete" in refused["err"]


def test_a_new_run_leaves_the_record_and_the_id_of_an_unfinished_one(tmp_path: Path) -> None:
    """Each of the others is complete when the next begins."""
    assert alone(left_out, str(tmp_path), 3, True)["code"] == 9
    before = (tmp_path / "run.json").read_text()
    for drawn, taken in (("drawn by 0", "drawn by 0.2"), ("drawn by 0", "drawn by 0.3"), ("another", "another.2")):
        other = alone(restarts, {"TORCHTALLY_OUTPUT": str(tmp_path), "TORCHTALLY_RUN": drawn}, False)
        assert other["code"] == 0, other["err"]
        assert (tmp_path / "run.json").read_text() == before
        assert {line["run"] for line in tallied(other["out"])} == {taken}


def goes_on(folder: str, state: Any, dies: bool) -> Any:
    """Trains from `state` on; returns the state of the third step, in which it dies."""
    os.environ["TORCHTALLY_OUTPUT"] = folder
    with contextlib.suppress(ZeroDivisionError), Account(task="t", plan={"train": 1}) as account:
        loader = account.loader(Noisy(N), "train", batch_size=SIZE)
        if state:
            account.load_state_dict(state)
        for batch in account.epoch("train", 1, loader):
            account.commit()
            if dies and batch.step == 3:
                state = account.state_dict()
                raise ZeroDivisionError
    return state


def test_a_start_from_an_old_state_has_a_number_that_no_other_had(tmp_path: Path) -> None:
    first = alone(goes_on, str(tmp_path), None, True)["result"]
    alone(goes_on, str(tmp_path), first, False)
    (tmp_path / "run.json").write_text((tmp_path / "run.json").read_text().replace("true", "false"))  # it was killed
    last = alone(goes_on, str(tmp_path), first, False)
    assert last["code"] == 0, last["err"]
    assert {line["attempt"] for line in tallied(last["out"])} == {2}


@pytest.mark.parametrize(
    "contents", ["", "{", "[]", json.dumps({"run": 1, "attempt": "x", "task": "t", "complete": 0})]
)
def test_a_damaged_record_counts_as_none(tmp_path: Path, contents: str) -> None:
    (tmp_path / "run.json").write_text(contents)
    found = alone(restarts, {"TORCHTALLY_OUTPUT": str(tmp_path)}, False)
    assert found["code"] == 0, found["err"]


# Checkpoints that a commit in the wrong place would spoil.


def in_background(batches: Iterator[Batch]) -> Iterator[Batch]:
    """The batches, as a thread beside the loop has fetched them."""
    fetched: queue.Queue[Any] = queue.Queue(2)

    def fetch() -> None:
        with contextlib.suppress(Refused):  # the loop's next commit raises it
            for batch in batches:
                fetched.put(batch)
        fetched.put(None)

    threading.Thread(target=fetch).start()
    yield from iter(fetched.get, None)


def trains_beside_a_thread(folder: Path) -> None:
    counts = torch.nn.Embedding(N, 1)
    optimizer = torch.optim.SGD(counts.parameters(), lr=1.0)
    with Account(task="t", plan={"train": 1}) as account:
        loader = account.loader(Noisy(N), "train", batch_size=SIZE)
        account.checkpoints(folder, {"counts": counts, "optimizer": optimizer}).resume()
        for batch in in_background(account.epoch("train", 1, loader)):
            optimizer.zero_grad()
            counts(batch.data[0]).sum().backward()
            optimizer.step()
            account.commit(batch)


def test_batches_of_a_thread_are_refused_as_a_checkpoint_would_have_half_of_a_step(tmp_path: Path) -> None:
    found = alone(trains_beside_a_thread, tmp_path)
    assert found["code"] == 2, found["err"]
    assert "fetch batches in the thread that commits" in found["err"]


def folds_of_one_folder(folder: Path, plans: tuple[int, int]) -> list[float]:
    """Two folds of one name with one folder of checkpoints; returns how often the second has seen its samples."""
    times: list[float] = []
    for fold, epochs in enumerate(plans):
        counts = torch.nn.Embedding(2 * N, 1)
        torch.nn.init.zeros_(counts.weight)
        optimizer = torch.optim.SGD(counts.parameters(), lr=1.0)
        data = range(fold * N, fold * N + N)
        with Account(task="fold", plan={"train": epochs}) as account:
            loader = account.loader(data, "train", batch_size=SIZE)
            checkpoints = account.checkpoints(folder, {"counts": counts, "optimizer": optimizer}, every=32400)
            checkpoints.resume()
            for epoch in account.epochs():
                for batch in account.epoch("train", epoch, loader):
                    optimizer.zero_grad()
                    counts(batch.data).sum().neg().backward()
                    optimizer.step()
                    account.commit()
                    if batch.step == 2:
                        checkpoints.save(wait=True)
        times = counts.weight.detach().flatten().tolist()[data[0] : data[0] + N]
    return times


@pytest.mark.parametrize("plans", [(1, 1), (1, 2)])
def test_a_fold_does_not_go_on_with_the_checkpoint_of_the_one_before(plans: tuple[int, int], tmp_path: Path) -> None:
    """Nothing tells apart the data of the folds."""
    found = alone(folds_of_one_folder, tmp_path, plans)
    assert found["code"] == 2, (found["result"], found["err"])
    assert "which this process has completed" in found["err"]


# A state that is not of the moment of the weights.


def fetched(batches: Iterator[Batch], ahead: bool) -> Iterator[Batch]:
    """The batches, one of them ahead of the loop or none."""
    held = deque(islice(batches, int(ahead)))
    for batch in batches:
        held.append(batch)
        yield held.popleft()
    yield from held


MOMENTS = ("before the backward pass", "before the step", "after the step", "after the clear")


def saves_and_goes_on(moment: str, at: int, ahead: bool) -> list[int]:
    """Steps once for two batches, saves in the step or beside it, and begins again with what it has saved."""
    counts = torch.nn.Embedding(12, 1)
    torch.nn.init.zeros_(counts.weight)
    saved: Any = None
    for _ in range(2):
        counts.zero_grad()  # as in a new process
        optimizer = torch.optim.SGD(counts.parameters(), lr=1.0)
        with contextlib.suppress(InterruptedError), Account("saved", epochs=1) as account:
            account.optimizer(optimizer)
            loader = account.loader(range(12), batch_size=2)
            begins, resumes = saved is None, saved is not None
            if resumes:
                state, weights = saved
                account.load_state_dict(state)
                counts.load_state_dict(weights)

            def now(reached: str, step: int, begins: bool = begins, account: Account = account) -> None:
                nonlocal saved
                if begins and (reached, step) == (moment, at):
                    saved = account.state_dict(), {"weight": counts.weight.detach().clone()}
                    raise InterruptedError

            for batch in fetched(account.epoch("train", 1, loader), ahead):
                now(MOMENTS[0], batch.step)
                account.weigh(-counts(batch.data).sum(), batch).backward()
                now(MOMENTS[1], batch.step)
                if batch.step % 2 == 0:
                    optimizer.step()
                    now(MOMENTS[2], batch.step)
                    optimizer.zero_grad()
                    now(MOMENTS[3], batch.step)
    return counts.weight.detach().flatten().int().tolist()


def test_a_state_of_any_moment_is_that_of_the_weights(subtests: pytest.Subtests) -> None:
    cases = [*itertools.product(MOMENTS, (4, 6), (False, True))]
    for case, [found] in zip(cases, in_turn(1, ((saves_and_goes_on, *case) for case in cases)), strict=True):
        with subtests.test(str(case)):
            assert (found["code"], found["result"]) == (0, [1] * 12), found["err"]


def saves_on_rank_0() -> list[str]:
    """After each step of both epochs, beside a collective call of all ranks."""
    training, states = Witness(N), []
    with Account("t", epochs=2) as account:
        for optimizer in training.optimizers:
            account.optimizer(optimizer)
        loader = account.loader(Noisy(N), batch_size=SIZE)
        for _ in account.epochs():
            for batch in loader:
                account.weigh(training.loss(*batch)).backward()
                training.step()
                if account.rank == 0:
                    states.append(account.state_dict()["torchtally"])
                dist.barrier()
    return states


def test_one_rank_alone_may_save_a_state() -> None:
    first, other = run(2, saves_on_rank_0)
    assert (first["code"], other["code"]) == (0, 0), first["err"] + other["err"]
    assert len(set(first["result"])) == 8
