"""Evaluations before the training, after it, or late in it: a resume makes what is left of an epoch, and only that."""

from pathlib import Path
from typing import Any

import pytest
import torch
from accounts import alone, in_turn, run, verified
from test_rest_of_epoch import SIZE, TESTS, N, Scheduled
from witness import Noisy

from torchtally import Account, Every

EPOCHS = 6


def trains(file: Path, evaluated: tuple[int, ...], saves: str = "", dies: int = 0, plan: Any = None) -> Any:
    """Evaluates in the epochs `evaluated`, of which 0 is before the training, and the last one may be after it.

    Saves at a moment of each epoch, or after the last one, and ends after that of the epoch `dies` as if killed.
    """
    training = Scheduled()
    plan = {"train": EPOCHS, "test": plan or len(evaluated)}
    account = Account(task="t", plan=plan, anew=not file.exists()).__enter__()
    loader = account.loader(Noisy(N), "train", batch_size=SIZE)
    tests = account.loader(Noisy(TESTS), "test", batch_size=SIZE, shuffle=False, trains=False)
    if file.exists():
        saved = torch.load(file)
        account.load_state_dict(saved["account"])
        training.take_up(saved)

    def save(moment: str, epoch: int) -> bool:
        if moment == saves:
            torch.save({"account": account.state_dict(), **training.states}, file)
        return moment == saves and epoch == dies

    def evaluate(number: int) -> None:
        for _ in account.epoch("test", number, tests):
            pass

    if 0 in evaluated:
        evaluate(1)
    for epoch in account.epochs():
        if save("before the batches", epoch):
            return "killed"
        for batch in account.epoch("train", epoch, loader):
            training.backward(*batch.data)
            training.step()
            account.commit()
            if batch.step == batch.steps - 3 and save("in the batches", epoch):
                return "killed"
            if batch.step == batch.steps and save("at the last batch", epoch):
                return "killed"
        if save("after the batches", epoch):
            return "killed"
        if epoch in evaluated:
            evaluate(account.completed("test") + 1)
        training.scheduler.step()
        if save("at the end", epoch):
            return "killed"
    if save("after the training", EPOCHS):
        return "killed"
    if EPOCHS + 1 in evaluated:
        evaluate(account.completed("test") + 1)
    account.__exit__(None, None, None)
    return training.outcome


EACH = tuple(range(1, EPOCHS + 1))
BEFORE, AT_THE_END = ("before the batches", "in the batches", "at the last batch"), "at the end"
IN_EACH = (0, *EACH)
EVERY_OTHER = (0, 2, 4, 6)
LATE, AFTER = (5, 6), (EPOCHS + 1,)


@pytest.mark.parametrize(
    ("world", "evaluated", "plan"), [(1, IN_EACH, None), (2, IN_EACH, None), (2, (4,), Every(4))], ids=str
)
def test_an_evaluation_may_precede_the_training_or_follow_some_epochs(
    world: int, evaluated: tuple[int, ...], plan: Any, tmp_path: Path
) -> None:
    found = run(world, trains, tmp_path / "none", evaluated, "", 0, plan)
    for each in found:
        assert each["code"] == 0, each["err"]
        assert each["result"]["times"] == [EPOCHS] * N
    verdict = verified(found)
    assert verdict.holds, verdict.problems


def all_kills(
    folder: Path, evaluated: tuple[int, ...], moments: dict[str, tuple[int, ...]], plan: Any = None
) -> list[tuple[str, int]]:
    """Dies at each moment of these epochs, and goes on; returns where that has not ended as a run without a kill."""
    expected, others = trains(folder / "none", evaluated, plan=plan), []
    for moment, epochs in moments.items():
        for dies in epochs:
            file = folder / f"{moment} {dies}"
            assert trains(file, evaluated, moment, dies, plan) == "killed"
            if trains(file, evaluated, plan=plan) != expected:
                others.append((moment, dies))
    assert expected["times"] == [EPOCHS] * N
    return others


@pytest.mark.parametrize(
    ("evaluated", "plan", "moments"),
    [
        pytest.param(IN_EACH, None, {"after the batches": EACH, AT_THE_END: EACH}, marks=pytest.mark.nightly),
        ((2, 4, 6), Every(2), {"after the batches": (2, 4, 6), AT_THE_END: EACH}),
        pytest.param((4,), Every(4), {"after the batches": (4,), AT_THE_END: EACH}, marks=pytest.mark.nightly),
        pytest.param(EVERY_OTHER, None, {AT_THE_END: EACH}, marks=pytest.mark.nightly),
        pytest.param(LATE, None, {AT_THE_END: EACH}, marks=pytest.mark.nightly),
        (AFTER, None, {AT_THE_END: EACH, "after the training": (EPOCHS,)}),
    ],
    ids=str,
)
def test_what_is_left_of_an_epoch_is_made_once(
    evaluated: tuple[int, ...], plan: Any, moments: dict[str, tuple[int, ...]], tmp_path: Path
) -> None:
    found = alone(all_kills, tmp_path, evaluated, {**dict.fromkeys(BEFORE, EACH), **moments}, plan)
    assert (found["code"], found["result"]) == (0, []), found["err"]


def test_an_evaluation_that_no_plan_places_is_missed_and_said(tmp_path: Path) -> None:
    """The state of the last epoch is saved after the batches, which do not tell that an evaluation follows."""
    assert alone(trains, tmp_path / "saved", LATE, "after the batches", EPOCHS)["result"] == "killed"
    found = alone(trains, tmp_path / "saved", LATE)
    assert found["code"] == 3
    assert "the plan has 2 epochs of test, and 1 were made; a phase that only some epochs" in found["err"]


def evaluates_within(saved: Any, dies: tuple[int, int]) -> Any:
    """Evaluates after each fourth step, and so twice in an epoch of 8, and saves then."""
    training = Scheduled()
    account = Account(task="t", plan={"train": 3, "test": 6}).__enter__()
    loader = account.loader(Noisy(N), "train", batch_size=SIZE)
    tests = account.loader(Noisy(TESTS), "test", batch_size=SIZE, shuffle=False, trains=False)
    if saved:
        account.load_state_dict(saved["account"])
        training.take_up(saved)
    for epoch in account.epochs():
        for batch in account.epoch("train", epoch, loader):
            training.backward(*batch.data)
            training.step()
            account.commit()
            for _ in account.epoch("test", account.completed("test") + 1, tests) if batch.step % 4 == 0 else ():
                pass
            if (epoch, batch.step) == dies:
                return {"account": account.state_dict(), **training.states}
        training.scheduler.step()
    account.__exit__(None, None, None)
    return training.outcome


def test_several_evaluations_in_an_epoch_may_be_interrupted() -> None:
    killed = [alone(evaluates_within, None, dies) for dies in ((1, 4), (1, 8), (2, 6), (3, 8))]
    saved = [None, *(each["result"] for each in killed)]
    [expected], *turns = in_turn(1, ((evaluates_within, state, (0, 0)) for state in saved))
    assert expected["code"] == 0, expected["err"]
    for before, [resumed] in zip(killed, turns, strict=True):
        assert (resumed["code"], resumed["result"]) == (0, expected["result"]), resumed["err"]
        verdict = verified([before], [resumed])
        assert verdict.holds, verdict.problems


PLACES = ("before", "within", "after", "last")


def evaluates_by_the_loader(saved: Any, places: tuple[str, ...], dies: tuple[int, str]) -> Any:
    """Evaluates at these places of each epoch, saves after an evaluation, and ends there as if killed."""
    training, evaluated = Scheduled(), []
    account = Account(task="t", plan={"train": 3, "test": 3 * len(places)}, anew=not saved).__enter__()
    loader = account.loader(Noisy(N), "train", batch_size=SIZE)
    tests = account.loader(Noisy(TESTS), "test", batch_size=SIZE, shuffle=False, trains=False)
    if saved:
        account.load_state_dict(saved["account"])
        training.take_up(saved)

    def is_killed(epoch: int, place: str) -> bool:
        if place in places and sum(len(rows) for rows, _ in tests):
            evaluated.append((epoch, place))
        return (epoch, place) == dies

    def state() -> Any:
        return {"account": account.state_dict(), **training.states}, evaluated

    for epoch in account.epochs():
        if is_killed(epoch, "before"):
            return state()
        for batch in account.epoch("train", epoch, loader):
            training.backward(*batch.data)
            training.step()
            account.commit()
            if batch.step == 4 and is_killed(epoch, "within"):
                return state()
        if is_killed(epoch, "after") or is_killed(epoch, "last"):
            return state()
        training.scheduler.step()
        if is_killed(epoch, "end"):
            return state()
    account.__exit__(None, None, None)
    return training.outcome, evaluated


def all_kills_by_the_loader(places: tuple[str, ...]) -> list[Any]:
    """Dies after each evaluation but the last of a body, and at its end; returns where the next start is not right."""
    expected, others = evaluates_by_the_loader(None, places, (0, "")), []
    for dies in [(epoch, place) for epoch in (1, 3) for place in (*places[:-1], "end")]:
        saved, made = evaluates_by_the_loader(None, places, dies)
        outcome, rest = evaluates_by_the_loader(saved, places, (0, ""))
        if (outcome, made + rest) != expected:
            others.append((dies, made, rest))
    assert len(expected[1]) == 3 * len(places)
    return others


@pytest.mark.parametrize("places", [("after", "last"), ("before", "within", "last"), PLACES], ids=str)
def test_an_evaluation_that_is_made_is_not_made_again_by_its_loader(places: tuple[str, ...]) -> None:
    found = alone(all_kills_by_the_loader, places)
    assert (found["code"], found["result"]) == (0, []), found["err"]
