"""An account's checkpoints in programs that call them at odd moments, and go on after an error."""

import contextlib
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
from accounts import alone, as_rank, assert_ends, in_turn, run, tallied
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset
from witness import Direct, Noisy, Witness

from torchtally import Account, Batch, exchange
from torchtally.checkpoints import conditions, stopping

N, SIZE = 29, 4


class Odd:
    """An object that cannot take up a state."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise KeyError("version")


def trains(folder: Path, how: str = "") -> list[int]:
    training = Witness(N)
    objects: dict[str, Any] = {"odd": Odd(), **training.objects}
    if how in ("saves without the odd", "loads other weights after it"):
        del objects["odd"]
    if how == "other objects":
        del objects["model"], objects["optimizer 1"]
    with Account(task="t", plan={"train": 1}, anew=True) as account:
        if how == "has the account":
            objects["account"] = account
        kept = account.checkpoints(folder, objects, every=32400)
        if how == "saves before it resumes":
            kept.save(wait=True)
        with contextlib.suppress(Exception):  # as a program that begins anew if there is no checkpoint to load
            kept.resume()
        if how == "loads other weights after it":
            training.model[0].reset_parameters()
        if how == "saves before it has a loader":
            kept.save(wait=True)
        for batch in account.epoch("train", 1, account.loader(Noisy(N), "train", batch_size=SIZE)):
            training.backward(*batch.data)
            training.step()
            account.commit()
            if batch.step == 3 and how in ("saves", "saves without the odd"):
                kept.save(wait=True)
    return training.times


def trains_two(folder: Path, how: str) -> None:
    """Two models. Beside them, something else is trained by an optimizer of its own."""
    one, other = Witness(N), torch.nn.Linear(3, 3)
    beside = other if how in ("", "is left out", "lacks its optimizer") else torch.nn.Linear(3, 3)
    kind = torch.optim.Adam if how in ("", "lacks its optimizer", "saved by another object") else torch.optim.SGD
    optimizer = kind(beside.parameters(), lr=0.1)
    objects: dict[str, Any] = one.objects | {"other": other, "optimizer": optimizer}
    if how != "":
        del objects["optimizer"]
    if how == "is left out":
        del objects["other"]
    if how == "saved by another object":
        objects["wrapper"] = Wrapper(beside, optimizer)
    with Account("t", epochs=1) as account:
        for each in (*one.optimizers, optimizer):
            account.optimizer(each)
        kept = account.checkpoints(folder, objects, every=32400)
        kept.resume()
        for batch in account.loader(Noisy(N), batch_size=2):
            optimizer.zero_grad()
            account.weigh(one.loss(*batch) + beside(torch.ones(1, 3)).sum()).backward()
            one.step()
            optimizer.step()
            if how == "is written back":
                other.load_state_dict(beside.state_dict())
        kept.save(wait=True)


class Wrapper:
    """Saves a model and its optimizer."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer):
        self.both = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.both[0].state_dict(), "optimizer": self.both[1].state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for each, own in zip(self.both, state.values(), strict=True):
            each.load_state_dict(own)


LACKS_MODEL = "an optimizer steps parameters of which no object has a state"


def test_what_the_loop_trains_is_among_the_objects(subtests: pytest.Subtests, tmp_path: Path) -> None:
    lacks = {
        "is left out": LACKS_MODEL,
        "has the shapes of another": LACKS_MODEL,
        "lacks its optimizer": "the optimizer Adam has a state that no object saves",
    }
    lacks_nothing = dict.fromkeys(("", "is written back", "saved by another object"), "")
    cases = [((trains_two, tmp_path / how, how), 2 * bool(said), said) for how, said in (lacks | lacks_nothing).items()]
    assert_ends(subtests, 1, cases)


def trains_two_accounts(folder: Path) -> None:
    models = [torch.nn.Linear(3, 3) for _ in "ab"]
    optimizers = [torch.optim.Adam(each.parameters(), lr=0.1) for each in models]
    with Account(task="a", plan={"train": 1}) as a, Account(task="b", plan={"train": 1}) as b:
        for account, model, optimizer in zip((a, b), models, optimizers, strict=True):
            account.checkpoints(folder / account.task, {"model": model, "optimizer": optimizer}, every=32400).resume()
        loaders = [each.loader(Noisy(N), "train", batch_size=2) for each in (a, b)]
        for _ in zip(a.epoch("train", 1, loaders[0]), b.epoch("train", 1, loaders[1]), strict=True):
            for account, model, optimizer in zip((a, b), models, optimizers, strict=True):
                optimizer.zero_grad()
                model(torch.ones(1, 3)).sum().backward()
                optimizer.step()
                account.commit()


def test_two_accounts_side_by_side_have_objects_of_their_own(tmp_path: Path) -> None:
    found = alone(trains_two_accounts, tmp_path)
    assert found["code"] == 0, found["err"]


def steps_without_state(folder: Path) -> list[int]:
    training = Witness(N)
    optimizer = Direct(training.counts.weight)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    with Account(task="t", plan={"train": 1}) as account:
        kept = account.checkpoints(folder, {"counts": training.counts, "direct": optimizer}, every=32400)
        kept.resume()
        for batch in account.epoch("train", 1, account.loader(Noisy(N), "train", batch_size=SIZE)):
            optimizer.rows = batch.data[0]
            optimizer.step()
            account.commit()
            kept.save(wait=True)
            schedule.step()
    return training.times


def test_a_save_makes_no_step_of_an_optimizer(tmp_path: Path) -> None:
    """PyTorch makes one to read a state that an optimizer does not have yet."""
    found = alone(steps_without_state, tmp_path)
    assert found["code"] == 0, found["err"]
    assert found["result"] == [1] * N
    assert "lr_scheduler.step()" not in found["err"]  # PyTorch's warning, if it takes the optimizer's step for missing


class Sharp(torch.optim.SGD):
    """Makes no step without a closure, as sharpness-aware minimization does."""

    def step(self, closure: Any = None) -> Any:
        assert closure is not None, "needs a closure"
        closure()
        return super().step()


class Sharper(torch.optim.SGD):
    """Clears the gradients before it fails without a closure, and needs those from before and of the closure."""

    def step(self, closure: Any = None) -> Any:
        gradients = [each.grad for group in self.param_groups for each in group["params"] if each.grad is not None]
        torch.stack([each.norm() for each in gradients]).norm()
        self.zero_grad()
        closure()
        return super().step()


class Plain(torch.optim.SGD):
    """Takes no closure."""

    def step(self, *, closure: Any = None) -> Any:  # type: ignore[override]
        if closure is not None:
            raise NotImplementedError
        return super().step()


def goes_on(folder: Path, how: str, kind: str) -> str:
    """Trains a part of a model in the second epoch alone, or by an optimizer of the kind; stops in the last epoch."""
    training = Witness(N)
    part = training.model[0]
    if kind != "frozen":
        own = {"needs a closure": Sharp, "clears before it": Sharper, "takes no closure": Plain}[kind]
        training.optimizers[1] = own(training.model.parameters(), lr=0.01, momentum=0.9)
    with Account(task="t", plan={"train": 2}, anew=how != "goes on") as account:
        loader = account.loader(Noisy(N), "train", batch_size=SIZE)
        part.requires_grad_(kind != "frozen")
        kept = account.checkpoints(folder, training.objects, every=32400)
        kept.resume()
        for epoch in account.epochs():
            part.requires_grad_(kind != "frozen" or epoch == 2)
            for batch in account.epoch("train", epoch, loader):
                training.backward(*batch.data)
                for each in (*training.counts.parameters(), *training.model.parameters()):
                    each.grad = torch.zeros_like(each) if each.grad is None and each.requires_grad else each.grad
                training.optimizers[0].step()
                found = [(each, each.grad) for each in training.model.parameters()]

                def closure(found: Any = found) -> float:
                    for each, gradient in found:
                        each.grad = gradient
                    return 0.0

                training.optimizers[1].step(*[closure] * (kind in ("needs a closure", "clears before it")))
                training.zero_grad()
                account.commit()
                if (epoch, batch.step) == (2, 3) and how == "stops":
                    kept.save(wait=True)
                    raise ZeroDivisionError
    return training.sha256


@pytest.mark.parametrize("kind", ["frozen", "needs a closure", "clears before it", "takes no closure"])
def test_a_part_that_was_frozen_and_optimizers_with_and_without_a_closure_go_on(kind: str, tmp_path: Path) -> None:
    whole = alone(goes_on, tmp_path / "other", "", kind)["result"]
    assert isinstance(ranks.run(1, as_rank, goes_on, tmp_path / "own", "stops", kind)[0], ZeroDivisionError)
    found = alone(goes_on, tmp_path / "own", "goes on", kind)
    assert (found["code"], found["result"]) == (0, whole), found["err"]


def trains_in_threads(folder: Path, how: str = "") -> tuple[list[int], list[str]]:
    """Each epoch has a thread. A second one may fetch its batches, or train the rest of it, after the first or beside.

    The operating system gives the identifier of a thread that has ended to a later one.
    """
    stopping._SYNCHRONIZE_SECONDS = 0
    training = Witness(N)
    with Account(task="t", plan={"train": 3}) as account:
        loader = account.loader(Noisy(N), "train", batch_size=SIZE)
        kept = account.checkpoints(folder, training.objects, every=32400)
        kept.resume()

        def train(batches: Iterator[Batch]) -> None:
            for batch in batches:
                if batch.step == batch.steps:
                    kept.finish()
                    kept._saved = -1e9
                training.backward(*batch.data)
                training.step()
                account.commit(batch)

        for epoch in account.epochs():
            batches = account.epoch("train", epoch, loader)
            with ThreadPoolExecutor(1) as first:
                if how:
                    first.submit(train, islice(batches, 6)).result()
                if how != "two that both live":
                    first.shutdown()
                with ThreadPoolExecutor(1) as second:
                    second.submit(train, fetched_beside(batches) if how == "one beside the loop" else batches).result()
    return training.times, sorted(path.name[9:27] for path in folder.glob("*-epoch-*"))


def fetched_beside(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Each batch is fetched in another thread while the one before is in a step."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = pool.submit(next, batches, None)
            yield batch


@pytest.mark.parametrize("how", ["", "two after each other"])
def test_each_epoch_may_have_threads_of_its_own(how: str, tmp_path: Path) -> None:
    found = alone(trains_in_threads, tmp_path, how)
    assert found["code"] == 0, found["err"]
    assert found["result"] == ([3] * N, ["epoch-2-position-0", "epoch-3-position-0"])


@pytest.mark.parametrize("how", ["two that both live", "one beside the loop"])
def test_other_threads_than_that_of_the_epoch_are_refused(how: str, tmp_path: Path) -> None:
    found = alone(trains_in_threads, tmp_path, how)
    assert found["code"] == 2, found["err"]
    assert "another thread than the one that commits has fetched a batch" in found["err"]


def saves_many(folder: Path, parameters: int, unequal: bool) -> int:
    """Returns the bytes of what a rank tells the others of its weights."""
    model = torch.nn.ParameterDict({f"w{number}": torch.zeros(2) for number in range(parameters)})
    model.register_buffer("of each rank", torch.full((2,), float(dist.get_rank())))
    sent: list[int] = []

    def counted(value: Any, group: dist.ProcessGroup) -> list[Any]:
        sent.append(len(json.dumps(value)))
        return exchange.all_gather(value, group)

    with Account(task="t", plan={"train": 1}) as account:
        loader = account.loader(Noisy(N), "train", batch_size=SIZE)
        kept = account.checkpoints(folder, {"model": model}, every=32400)
        kept.resume()
        if unequal and account.rank == 1:
            model["w7"].data += 1
        conditions.exchange = SimpleNamespace(all_gather=counted)
        for batch in account.epoch("train", 1, loader):
            account.commit()
            if batch.step == 1:
                kept.save(wait=True)
    return sent[0]


def test_what_ranks_tell_of_equal_weights_does_not_grow_with_their_parameters(tmp_path: Path) -> None:
    few, many = (run(2, saves_many, tmp_path / str(count), count, False) for count in (10, 1000))
    for one, other in zip(few, many, strict=True):
        assert one["result"] == other["result"] < 200, other["err"]
    for each in run(2, saves_many, tmp_path / "unequal", 1000, True):
        assert each["code"] == 2
        assert "ranks 0 and 1 have different values of model.w7" in each["err"]


LEFT = (".shared-0123abcd", "..shared-0123abcd.u3k_9x2a", ".run.json.u3k_9x2a")


def test_what_killed_starts_have_left_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHTALLY_OUTPUT", str(tmp_path))
    for name in (*LEFT, ".my.json.u3k_9x2a", ".shared-with-others"):
        (tmp_path / name).touch()
    assert alone(trains, tmp_path)["code"] == 0
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [
        ".in-use",
        ".in-use.json",
        ".my.json.u3k_9x2a",
        ".shared-with-others",
        "proof.json",
        "reached",
        "run.json",
    ]


def test_a_loop_that_does_not_take_up_all_is_refused(subtests: pytest.Subtests, tmp_path: Path) -> None:
    for before in ("saves", "saves without the odd"):
        assert alone(trains, tmp_path / before, before)["code"] == 0
    cases = [
        ("", "saves before it resumes", "checkpoints: call resume() before"),
        ("", "saves before it has a loader", "checkpoints: save() needs the loader or the sampler of a phase"),
        ("", "has the account", "checkpoints: 'account' is the account, whose state every checkpoint has"),
        (
            "saves without the odd",
            "loads other weights after it",
            "'model' has changed between resume() and the first batch",
        ),
        ("saves", "", "KeyError: 'version'"),  # it has half of a checkpoint
        ("saves", "other objects", "and the objects are"),
    ]
    turns = in_turn(1, ((trains, tmp_path / (before or how), how) for before, how, _ in cases))
    for (_, how, sentence), [found] in zip(cases, turns, strict=True):
        with subtests.test(how):
            assert (found["code"], sentence in found["err"]) == (2, True), found["err"]
            assert not tallied(found["out"])


def saves_early(folder: Path, anew: bool) -> bool:
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Account("t", epochs=1, anew=anew) as account:
        account.optimizer(optimizer)
        kept = account.checkpoints(folder, {"model": model, "optimizer": optimizer}, every=32400)
        resumed = kept.resume()
        for step, batch in enumerate(account.loader(TensorDataset(torch.ones(N, 1)), batch_size=SIZE)):
            optimizer.zero_grad()
            account.weigh(model(*batch).mean()).backward()
            optimizer.step()
            if step == 1 and not resumed:
                kept.save(wait=True)
    return resumed


def test_damaged_checkpoints_alone_end_the_run_unless_it_is_to_begin_anew(tmp_path: Path) -> None:
    run(2, saves_early, tmp_path, False)
    (made,) = (each for each in tmp_path.iterdir() if each.is_dir())
    half = tmp_path / made.name.replace("00000001", "00000002")
    half.mkdir()
    found = run(2, saves_early, tmp_path, False)
    assert [each["result"] for each in found] == [True, True], found[0]["err"]
    manifest, whole = made / "manifest.json", (made / "manifest.json").read_text()
    manifest.write_text(whole.replace('"world": 2', '"world": 3'))
    for each in run(2, saves_early, tmp_path, False):
        assert each["code"] == 2
        assert (
            f"no checkpoint in {tmp_path} can be taken up: restore one, or delete them to begin anew; "
            f"checkpoint {made}: its manifest is damaged\n" in each["err"]
        )
    assert made.exists()
    assert [each["result"] for each in run(2, saves_early, tmp_path, True)] == [False, False]
    shutil.rmtree(tmp_path)
    half.mkdir(parents=True)  # what a start has left that was killed while it wrote the first one
    assert [each["result"] for each in run(2, saves_early, tmp_path, False)] == [False, False]
