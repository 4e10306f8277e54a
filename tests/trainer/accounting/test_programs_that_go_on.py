"""Programs that go on with weights that have other samples than the account's: after an error, a stop, an old batch."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from accounts import alone, assert_ends, in_turn, tallied
from witness import Noisy, Witness

from torchtally import Account, Batch

RANK = {
    **{name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"},
    **dict.fromkeys(("RANK", "LOCAL_RANK", "TORCHELASTIC_RESTART_COUNT"), "0"),
    **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "1"),
}
N, SIZE = 29, 4
ONCE = [1] * N


def tries_again(folder: Path, how: str) -> list[int]:
    """An error ends the first try, after steps or before them. A second one follows, with the model or a new one."""
    training, idle = Witness(N), Witness(1)
    for number in range(2):
        try:
            if number and how == "new model":
                training = Witness(N)
            if number and how == "anew":  # in place
                training.load(Witness(N).save())
            with Account(task="t", plan={"train": 1}, anew=bool(number) and how == "anew") as account:
                for optimizer in training.optimizers or idle.optimizers:
                    account.optimizer(optimizer)
                if how == "checkpoints":
                    account.checkpoints(folder, training.objects, every=32400).resume()
                for step, batch in enumerate(account.loader(Noisy(N), "train", batch_size=SIZE), 1):
                    if not number and step == (1 if how == "no step" else 5):
                        raise RuntimeError("out of memory")
                    if how == "optimizer in each step":  # which is gone after it
                        training.optimizers = [
                            torch.optim.SGD([*training.counts.parameters(), *training.model.parameters()], lr=1)
                        ]
                        account.optimizer(training.optimizers[0])
                    account.weigh(training.loss(*batch)).backward()
                    training.step()
                    if how == "optimizer in each step":
                        training.optimizers = []
        except RuntimeError:
            continue
    return training.times


@pytest.mark.parametrize(
    ("how", "code"),
    [("", 2), ("checkpoints", 2), ("optimizer in each step", 2), ("new model", 0), ("anew", 0), ("no step", 0)],
)
def test_a_second_try_in_one_process_does_not_train_the_samples_of_the_first_again(
    how: str, code: int, tmp_path: Path
) -> None:
    found = alone(tries_again, tmp_path, how)
    assert found["code"] == code, (found["result"], found["err"])
    assert (
        found["result"] == ONCE
        if code == 0
        else "has ended in this process before its plan, and the model has its samples" in found["err"]
    )


def tries_within() -> None:
    """Once the run has made steps, another one trains its model, and fails."""
    training = Witness(N)

    def trains(account: Account, until: int) -> None:
        for optimizer in training.optimizers:
            account.optimizer(optimizer)
        for step, batch in enumerate(account.loader(Noisy(N), "train", batch_size=SIZE), 1):
            if step == until:
                with suppress(RuntimeError), Account(task="within", plan={"train": 1}) as within:
                    trains(within, 0)
            elif step == 3:
                raise RuntimeError("out of memory")
            account.weigh(training.loss(*batch)).backward()
            training.step()

    with Account(task="t", plan={"train": 1}) as account:
        trains(account, 3)


def test_a_run_whose_model_another_one_has_trained_and_left_is_not_proved() -> None:
    found = alone(tries_within)
    assert found["code"] in (2, 3), found["err"]
    assert "has ended in this process before its plan, and the model has its samples" in found["err"]


CATCHES = """
import torch, torch.distributed as dist
from torchtally import Account
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for number in range({tries}):
    try:
        with Account(task="t", plan={{"train": 1}}, anew=True) as account:
            for batch in account.epoch("train", 1, account.loader(range(9), "train", batch_size=2)):
                if number == 0 and batch.step == 3:
                    raise RuntimeError("out of memory")
                account.commit()
    except RuntimeError:
        print("goes on")
"""


@pytest.mark.parametrize("tries", [1, 2])
def test_a_program_that_catches_the_error_that_ended_its_run_has_it_said(tries: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", CATCHES.format(tries=tries)], env=RANK, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("is not proved: RuntimeError has ended it before its plan") == 1
    assert len([line for line in tallied(ended.stdout) if line["phase"] == "all"]) == tries - 1


ENDS = """
import sys, torch.distributed as dist, torchtally
from torchtally import Account
torchtally.exit_codes()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
with Account(task="t", plan={{"train": 1}}) as account:
    for batch in account.epoch("train", 1, account.loader(range(9), "train", batch_size=2)):
        if batch.step == 3:
            {how}
        account.commit()
    sys.exit(0)
"""


@pytest.mark.parametrize(
    ("how", "name", "code"), [("sys.exit()", "SystemExit", 3), ("sys.exit(0)", "SystemExit", 3), ("sys.exit(7)", "", 7)]
)
def test_a_program_that_leaves_its_run_does_not_end_with_0(how: str, name: str, code: int) -> None:
    ended = subprocess.run([sys.executable, "-c", ENDS.format(how=how)], env=RANK, capture_output=True, text=True)
    assert ended.returncode == code, ended.stderr
    assert (f"is not proved: {name} has ended it before its plan" in ended.stderr) == (code == 3)
    assert "Traceback" not in ended.stderr


def test_a_program_that_exits_with_0_once_all_is_proved_has_its_last_line() -> None:
    ended = subprocess.run([sys.executable, "-c", ENDS.format(how="pass")], env=RANK, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "not proved" not in ended.stderr
    assert [line["phase"] for line in tallied(ended.stdout)][-1] == "all"


def stops(how: str) -> list[int]:
    """Stops at the fifth batch of 4 samples, before it is trained or after."""
    training = Witness(N)
    with Account("t", epochs=2) as account:
        for optimizer in training.optimizers:
            account.optimizer(optimizer)
        for step, batch in enumerate(account.loader(Noisy(N), batch_size=SIZE), 1):
            if step == 5 and how != "after the step":
                account.stop("deadline")
            if step == 5 and how == "leaves the batch":
                break
            account.weigh(training.loss(*batch)).backward()
            training.step()
            if step == 5 and how == "after the step":
                account.stop("deadline")
    return training.times


def test_a_batch_that_is_trained_after_a_stop_is_not_left_out_of_the_proof() -> None:
    [[wrong], *others] = in_turn(1, ((stops, how) for how in ("", "leaves the batch", "after the step")))
    assert wrong["code"] == 3
    assert "after stop(), an optimizer has stepped with a batch of train epoch 1" in wrong["err"]
    for samples, [found] in zip((16, 20), others, strict=True):
        assert found["code"] == 0, found["err"]
        assert sum(found["result"]) == tallied(found["out"])[-1]["phases"]["train"]["consumed"] == samples


def saves_where_nothing_trains(trains: bool) -> Any:
    training = Witness(N)
    with Account(task="t", plan={"train": 1}) as account:
        for optimizer in training.optimizers:
            account.optimizer(optimizer)
        for step, batch in enumerate(account.loader(Noisy(N), "train", batch_size=SIZE, trains=trains), 1):
            loss = training.loss(*batch)
            (account.weigh(loss) if trains else loss).backward()
            training.step()
            if step == 4:
                account.state_dict()
    return training.times


def trains_a_kept_batch(kept: bool) -> list[int]:
    """Each epoch has one step. All may train the batch of the first one."""
    training, held = Witness(N), None
    with Account(task="t", plan={"train": 3}) as account:
        loader = account.loader(Noisy(N), "train", batch_size=N)
        for epoch in account.epochs():
            for batch in account.epoch("train", epoch, loader):
                held = held or batch
                used: Batch = held if kept else batch
                training.backward(*used.data)
                training.step()
                account.commit(used._replace(data=None))
    return training.times


NO_WORD = "an optimizer has stepped in train epoch 1, whose loader or sampler has trains=False"
KEPT = "commit() must receive a batch that is handed out and not committed"


def test_what_trains_against_its_word_or_in_another_epoch_is_refused(subtests: pytest.Subtests) -> None:
    """A state within a phase of trains=False has no position, so a resume would begin the epoch again."""
    cases: list[Any] = [
        ((saves_where_nothing_trains, True), 0, ""),
        ((saves_where_nothing_trains, False), 2, NO_WORD),
        ((trains_a_kept_batch, False), 0, ""),
        ((trains_a_kept_batch, True), 2, KEPT),
    ]
    assert_ends(subtests, 1, cases)
