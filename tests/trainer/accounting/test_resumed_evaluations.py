"""A state that is saved after the batches of an epoch, and before or within its evaluation, goes on with that one."""

from typing import Any

import pytest
import torch
from accounts import run
from loops import SIZE, N, Numbers, Times
from torch.optim import SGD

from torchtally import Account

EPOCHS = 2
Saved = tuple[dict[str, Any], torch.Tensor]


def trains(state: Saved | None, moment: str) -> tuple[list[int], list[Saved]]:
    model, saved = Times(), list[Saved]()
    optimizer = SGD(model.parameters(), lr=1)
    with Account("t", plan={"train": EPOCHS, "test": EPOCHS}) as account:
        account.optimizer(optimizer)
        loader = account.loader(Numbers(), "train", batch_size=SIZE)
        tests = account.loader(Numbers(), "test", batch_size=SIZE, shuffle=False, trains=False)
        if state:
            account.load_state_dict(state[0])
            model.rows.data.copy_(state[1])

        def save(now: str) -> None:
            if now == moment:
                saved.append((account.state_dict(), model.rows.detach().clone()))

        for _ in account.epochs():
            for batch in loader:
                account.weigh(model(batch)).backward()
                optimizer.step()
                optimizer.zero_grad()
            save("after the batches")
            for _ in tests:
                save("within")
            save("at the end")
    return model.times, saved


@pytest.mark.parametrize("moment", ["after the batches", "within", "at the end"])
def test_a_resume_makes_what_is_left_of_an_epoch(moment: str) -> None:
    [found] = run(1, trains, None, moment)
    assert found["code"] == 0, found["err"]
    states = found["result"][1]
    for state in (states[0], states[-1]):  # of the first and of the last epoch
        [again] = run(1, trains, state, "")
        assert (again["code"], again["result"] and again["result"][0]) == (0, [EPOCHS] * N), again["err"]
        last = state is states[-1]
        made = [(line["phase"], line["epoch"]) for line in again["lines"] if line.get("rank") == "all"]
        if moment == "at the end":
            assert made == ([] if last else [("train", 2), ("test", 2)])
        else:
            assert made == ([("test", 2)] if last else [("test", 1), ("train", 2), ("test", 2)])
        warns = f"the state was saved after the batches of train epoch {1 + last} and before the end of test"
        assert (warns in again["err"]) == (moment != "at the end")
