"""What a loop makes once an epoch, after its batches, is made exactly once: steps of a scheduler, an evaluation."""

import contextlib
import json
import os
import signal
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
import torch
from accounts import alone, in_turn, run, tallied, verified
from torch.optim.lr_scheduler import StepLR
from witness import Noisy, Witness

from torchtally import Account, Steps
from torchtally.checkpoints import stopping

N, TESTS, SIZE = 29, 7, 4  # 8 steps of one rank, and 4 of two
Saved = dict[str, Any]
NEVER = (0, 0)


class Scheduled(Witness):
    """Its learning rate falls once an epoch, so equal weights mean equal rates."""

    def __init__(self) -> None:
        super().__init__(N)
        self.scheduler = StepLR(self.optimizers[1], 1, gamma=0.5)

    @property
    def objects(self) -> dict[str, Any]:
        counts, model = self.optimizers
        return {"counts": self.counts, "model": self.model, "sgd": counts, "momentum": model, "rate": self.scheduler}

    @property
    def states(self) -> Saved:
        return {name: each.state_dict() for name, each in self.objects.items()}

    def take_up(self, saved: Saved) -> None:
        for name, each in self.objects.items():
            each.load_state_dict(saved[name])

    @property
    def outcome(self) -> dict[str, Any]:
        return {"times": self.times, "sha256": self.sha256, "rate": self.scheduler.get_last_lr()}


# By the account's checkpoints.


def trains(
    folder: Path,
    evaluated: tuple[int, ...],
    stops: tuple[int, int] = NEVER,
    saves: tuple[int, int] = NEVER,
    dies: int = 0,
    epochs: int = 3,
    size: int = SIZE,
) -> Saved:
    """Stops or saves at the commit of an epoch and of a step from its end; dies in the evaluation of an epoch."""
    stopping._SYNCHRONIZE_SECONDS = 0
    training = Scheduled()
    with Account(task="t", plan={"train": epochs, "test": len(evaluated)}) as account:
        loader = account.loader(Noisy(N), "train", batch_size=size)
        tests = account.loader(Noisy(TESTS), "test", batch_size=SIZE, shuffle=False, trains=False)
        kept = account.checkpoints(folder, training.objects, every=32400)
        kept.resume()
        for epoch in account.epochs():
            for batch in account.epoch("train", epoch, loader):
                training.backward(*batch.data)
                training.step()
                moment = (epoch, batch.steps - batch.step)
                if moment == stops and account.rank == 0:
                    signal.raise_signal(signal.SIGTERM)
                if moment == saves:
                    kept._saved = -1e9
                account.commit()
            if epoch in evaluated:
                for _ in account.epoch("test", account.completed("test") + 1, tests):
                    if dies == epoch:
                        kept._writer.finish()
                        os.kill(os.getpid(), signal.SIGKILL)
            training.scheduler.step()
    return training.outcome


@pytest.mark.parametrize(
    ("world", "size", "evaluated", "stops"),
    [
        (2, SIZE, (), (1, 0)),
        (1, SIZE, (), (2, 1)),
        pytest.param(1, SIZE, (2,), (1, 0), marks=pytest.mark.nightly),
        pytest.param(1, SIZE, (1, 2, 3), (2, 0), marks=pytest.mark.nightly),
        (1, N, (2,), (2, 0)),  # an epoch is a step
    ],
)
def test_a_stop_at_the_end_of_an_epoch_loses_nothing_of_its_rest(
    world: int, size: int, evaluated: tuple[int, ...], stops: tuple[int, int], tmp_path: Path
) -> None:
    stopped = run(world, trains, tmp_path / "here", evaluated, stops, NEVER, 0, 3, size)
    assert {each["code"] for each in stopped} == {143}, stopped
    folders = (tmp_path / "here", tmp_path / "other")
    resumed, expected = in_turn(world, ((trains, each, evaluated, NEVER, NEVER, 0, 3, size) for each in folders))
    for rank, each in enumerate(resumed):
        assert each["code"] == 0, each["err"]
        assert each["result"] == expected[rank]["result"]
    verdict = verified(stopped, resumed)
    assert verdict.holds, verdict.problems


def test_a_stop_at_the_last_commit_of_the_run_lets_it_end(tmp_path: Path) -> None:
    found = alone(trains, tmp_path, (3,), (3, 0))
    assert found["code"] == 0, found["err"]
    assert verified([found]).holds


@pytest.mark.parametrize("saves", [0, pytest.param(3, marks=pytest.mark.nightly)])
def test_an_irregular_evaluation_is_made_once_after_kills_in_each(saves: int, tmp_path: Path) -> None:
    """The newest checkpoint is from the last commit of the epoch of the evaluation, or from the middle of it."""
    evaluated, epochs = (2, 3, 6), 7
    for dies in evaluated:
        with pytest.raises(AssertionError, match="died without a word"):
            alone(trains, tmp_path / "here", evaluated, NEVER, (dies, saves), dies, epochs)
    folders = (tmp_path / "here", tmp_path / "other")
    [resumed], [undisturbed] = in_turn(1, ((trains, each, evaluated, NEVER, NEVER, 0, epochs) for each in folders))
    assert resumed["code"] == 0, resumed["err"]
    assert resumed["result"] == undisturbed["result"]
    assert {name: each["consumed"] for name, each in tallied(resumed["out"])[-1]["phases"].items()} == {
        "train": epochs * N,
        "test": len(evaluated) * TESTS,
    }
    verdict = verified([resumed])  # by the last line alone
    assert verdict.holds, verdict.problems


# By a checkpoint of the program's own, which it makes in the batch loop.


def saves(file: Path, moment: tuple[int, int] = NEVER, plan: Any = 3, how: str = "") -> Any:
    """Saves after the commit of an epoch and of a step from its end, and ends as if killed."""
    training = Scheduled()
    account = Account(task="t", plan={"train": plan}).__enter__()
    loader = account.loader(Noisy(N), "train", batch_size=SIZE)
    saved = torch.load(file) if file.exists() else None
    if saved:
        account.load_state_dict(saved["account"])
        training.take_up(saved)
        if how == "saves at once":
            torch.save({"account": account.state_dict(), **training.states}, file)
            return "killed"
    for epoch in list(account.epochs()) if how == "lists" else account.epochs():
        kept = account.epoch("train", epoch, loader) if how == "closes" else None
        for batch in (next(kept) for _ in range(8)) if kept else account.epoch("train", epoch, loader):
            training.backward(*batch.data)
            training.step()
            account.commit()
            if (epoch, batch.steps - batch.step) == moment:
                if how == "stops":
                    account.stop("patience")
                torch.save({"account": account.state_dict(), **training.states}, file)
                return "killed"
            if how == "breaks" and batch.step == batch.steps:
                break
        if kept:
            kept.close()
        training.scheduler.step()
        if how in ("at the end of the body", "closes") and epoch == moment[0]:
            torch.save({"account": account.state_dict(), **training.states}, file)
            return "killed"
    account.__exit__(None, None, None)
    return training.outcome


STATES: list[tuple[Any, tuple[int, int], str]] = [
    (3, (1, 0), ""),
    (3, (3, 0), ""),
    (3, (2, 0), "lists"),
    (3, (2, 0), "breaks"),
    (3, (2, 9), "at the end of the body"),
    (3, (2, 9), "closes"),
    (Steps(20), (3, 0), ""),  # four steps of the last epoch
]


def test_a_state_of_the_last_commit_of_an_epoch_goes_on_with_its_rest(
    subtests: pytest.Subtests, tmp_path: Path
) -> None:
    killed = []
    for number, (plan, moment, how) in enumerate(STATES):
        saved = tmp_path / str(number)
        killed.append([alone(saves, saved, moment, plan, how)])
        if how == "":
            killed[-1].append(alone(saves, saved, NEVER, plan, "saves at once"))
    plans = [plan for plan, *_ in STATES]
    cases = [(saves, tmp_path / str(number), NEVER, plan) for number, plan in enumerate(plans)]
    *turns, [in_epochs], [in_steps] = in_turn(
        1, [*cases, *((saves, tmp_path / "none", NEVER, p) for p in (3, plans[-1]))]
    )
    for number, ((plan, moment, how), before, [resumed]) in enumerate(zip(STATES, killed, turns, strict=True)):
        with subtests.test(f"{moment} {how}"):
            assert {each["result"] for each in before} == {"killed"}, before
            assert resumed["code"] == 0, resumed["err"]
            assert resumed["result"] == (in_epochs if plan == 3 else in_steps)["result"]
            verdict = verified(*([each] for each in [*before, resumed]))
            assert verdict.holds, verdict.problems
            state = json.loads(torch.load(tmp_path / str(number))["account"]["torchtally"])
            assert (state.get("unfinished") is None) == (moment == (2, 9))


def test_the_rest_of_the_epoch_in_which_a_run_was_stopped_is_made(tmp_path: Path) -> None:
    killed = alone(saves, tmp_path / "saved", (2, 3), 5, "stops")
    resumed = alone(saves, tmp_path / "saved", NEVER, 5)
    assert resumed["code"] == 0, resumed["err"]
    assert (sum(resumed["result"]["times"]), resumed["result"]["rate"]) == (N + 5 * SIZE, [0.01 / 4])
    verdict = verified([killed], [resumed])
    assert verdict.holds, verdict.problems


# Phases that train, one after another or side by side.


def two(saved: Saved | None, moment: tuple[str, int, int], together: bool) -> Any:
    """`main` has 4 epochs, and `other` trains as well: beside `main` in each, or after it in the epochs 1, 2, and 4."""
    plan, made = {"main": 4, "other": 4 if together else 3}, {"main": Scheduled(), "other": Scheduled()}
    account = Account(task="t", plan=plan).__enter__()
    loaders = {phase: account.loader(Noisy(N), phase, batch_size=SIZE + 3 * (phase == "other")) for phase in plan}
    if saved:
        account.load_state_dict(saved["account"])
        for phase, each in made.items():
            each.take_up(saved[phase])

    def trained(epoch: int, batch: Any) -> bool:
        made[batch.phase].backward(*batch.data)
        made[batch.phase].step()
        account.commit(batch)
        return (batch.phase, epoch, batch.steps - batch.step) == moment

    def state() -> Saved:
        return {"account": account.state_dict(), **{phase: each.states for phase, each in made.items()}}

    for epoch in account.epochs():
        if together:
            batches = (account.epoch(phase, epoch, loader) for phase, loader in loaders.items())
            for batch in (each for pair in zip_longest(*batches) for each in pair if each):
                if trained(epoch, batch):
                    return state()
        else:
            for batch in account.epoch("main", epoch, loaders["main"]):
                if trained(epoch, batch):
                    return state()
            for batch in account.epoch("other", min(epoch, 3), loaders["other"]) if epoch != 3 else ():
                if trained(epoch, batch):
                    return state()
        for each in made.values():
            each.scheduler.step()
    account.__exit__(None, None, None)
    return {phase: each.outcome for phase, each in made.items()}


@pytest.mark.parametrize(
    ("moment", "together"),
    [
        (("main", 2, 0), True),
        (("main", 2, 1), True),  # the other has completed the epoch
        pytest.param(("other", 2, 0), True, marks=pytest.mark.nightly),
        pytest.param(("main", 4, 0), True, marks=pytest.mark.nightly),
        pytest.param(("main", 2, 0), False, marks=pytest.mark.nightly),
        pytest.param(("other", 2, 0), False, marks=pytest.mark.nightly),
        (("other", 4, 2), False),  # the phase's third epoch
        pytest.param(("other", 4, 0), False, marks=pytest.mark.nightly),
    ],
)
def test_phases_that_train_in_one_epoch_have_their_rest(moment: tuple[str, int, int], together: bool) -> None:
    killed = alone(two, None, moment, together)
    states = (killed["result"], None)
    [resumed], [expected] = in_turn(1, ((two, state, ("", 0, 0), together) for state in states))
    assert resumed["code"] == 0, resumed["err"]
    assert resumed["result"] == expected["result"]
    verdict = verified([killed], [resumed])
    assert verdict.holds, verdict.problems


# By an account's loader, whose iter() is the next epoch.


def weighs(saved: Saved | None, moment: tuple[int, int] = NEVER, how: str = "") -> Any:
    """Saves after a step of an epoch, counted from its end, or at -1 after the rest of its body."""
    training, steps = Scheduled(), 8
    account = Account("t", epochs=3).__enter__()
    for each in training.optimizers:
        account.optimizer(each)
    loader = account.loader(Noisy(N), batch_size=SIZE)
    if saved:
        account.load_state_dict(saved["account"])
        training.take_up(saved)
    for epoch in range(account.completed("train") + 1, 4) if how == "counts itself" else account.epochs():
        for step, batch in zip(range(steps), loader, strict=False) if how == "zip" else enumerate(loader):
            account.weigh(training.loss(*batch)).backward()
            training.step()
            if (epoch, steps - 1 - step) == moment:
                return {"account": account.state_dict(), **training.states}
            if how == "break" and step == steps - 1:
                break
        training.scheduler.step()
        if (epoch, -1) == moment:
            return {"account": account.state_dict(), **training.states}
    account.__exit__(None, None, None)
    return training.outcome


MOMENTS = [
    ((1, 0), ""),
    ((3, 0), ""),
    ((1, -1), ""),
    ((1, -1), "zip"),
    ((1, -1), "break"),
    ((1, 0), "zip"),
    ((2, 3), ""),
]


def test_a_loop_over_a_loader_goes_on_with_the_rest_of_an_epoch(subtests: pytest.Subtests) -> None:
    killed = [alone(weighs, None, moment, how) for moment, how in MOMENTS]
    cases = [(weighs, each["result"], NEVER, how) for each, (_, how) in zip(killed, MOMENTS, strict=True)]
    [expected], *turns = in_turn(1, [(weighs, None), *cases])
    for moment, before, [resumed] in zip(MOMENTS, killed, turns, strict=True):
        with subtests.test(str(moment)):
            assert resumed["code"] == 0, resumed["err"]
            assert resumed["result"] == expected["result"]
            verdict = verified([before], [resumed])
            assert verdict.holds, verdict.problems


def test_a_library_that_counts_the_epochs_itself_goes_on_with_the_next() -> None:
    killed = alone(weighs, None, (1, 0), "counts itself")
    resumed = alone(weighs, killed["result"], NEVER, "counts itself")
    assert resumed["code"] == 0, resumed["err"]
    assert resumed["result"]["times"] == [3] * N


def names_an_optimizer_in_each_epoch(saved: Any = None) -> Any:
    """Saves after the last step of the first epoch, whose body a resume begins again without a batch."""
    counts = torch.nn.Embedding(N, 1)
    torch.nn.init.zeros_(counts.weight)
    with contextlib.suppress(InterruptedError), Account("t", epochs=3) as account:
        loader = account.loader(range(N), batch_size=SIZE)
        if saved:
            account.load_state_dict(saved[0])
            counts.load_state_dict(saved[1])
        for _ in account.epochs():
            optimizer = torch.optim.SGD(counts.parameters(), lr=1.0)
            account.optimizer(optimizer)
            for step, batch in enumerate(loader, 1):
                optimizer.zero_grad()
                account.weigh(-counts(batch).sum()).backward()
                optimizer.step()
                if not saved and step == len(loader):
                    saved = account.state_dict(), {"weight": counts.weight.detach().clone()}
                    raise InterruptedError
    return counts.weight.detach().flatten().int().tolist() if account.last_line else saved


def test_an_optimizer_may_be_new_in_each_epoch_also_after_a_resume() -> None:
    saved = alone(names_an_optimizer_in_each_epoch)["result"]
    found = alone(names_an_optimizer_in_each_epoch, saved)
    assert (found["code"], found["result"]) == (0, [3] * N), found["err"]
