"""A loop of a user's own whose checkpoints are in a folder that rank 0 alone has."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from accounts import assert_ends, run
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from witness import Noisy, Witness

from torchtally import Account
from torchtally.checkpoints import stopping

N, SIZE = 29, 4


class Odd:
    """An object whose state is no plain value."""

    def __init__(self, state: Any):
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return {"state": self.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state["state"]


def trains(folder: Path, dies: int | None = None, how: str = "") -> dict[str, Any]:
    """Two epochs, which end after so many commits; a checkpoint has all of them but the last."""
    stopping._SYNCHRONIZE_SECONDS = 0
    training, commits = Witness(N), 0
    with Account("t", plan={"train": 2}) as account:
        own = folder / f"of rank {account.rank}"  # as a volume of each pod
        counted = Odd({"commits": 0} if how != "an object of a class" else Witness)
        objects = {**training.objects, "odd": counted}
        if how == "sharded":
            mesh = init_device_mesh("cpu", (account.world,))
            objects["beside"] = fully_shard(torch.nn.Linear(4, 4), mesh=mesh)
        loader = account.loader(Noisy(N), "train", batch_size=SIZE)
        kept = account.checkpoints(own, objects, every=32400, of_rank_0=True)
        resumed = kept.resume()
        for epoch in account.epochs():
            for batch in account.epoch("train", epoch, loader):
                training.backward(*batch.data)
                training.step()
                account.commit()
                commits += 1
                if how != "an object of a class":
                    counted.state["commits"] += 1
                if how == "apart" and account.rank == 1:
                    with torch.no_grad():
                        next(training.model.parameters()).add_(1)
                if how == "a number of NumPy":
                    counted.state["best"] = np.float64(1)
                if dies == commits + 1 or how in ("apart", "a number of NumPy"):
                    kept.save(wait=True)
                if dies == commits:
                    raise KeyError("killed")
    return {"times": training.times, "sha256": training.sha256, "resumed": resumed, "commits": counted.state["commits"]}


def dies_and_goes_on(folder: Path, dies: int) -> dict[str, Any]:
    with pytest.raises(KeyError, match="killed"):
        trains(folder, dies)
    return trains(folder)


def test_it_goes_on_to_the_same_bits_and_other_ranks_have_no_file(tmp_path: Path) -> None:
    found, whole = run(2, dies_and_goes_on, tmp_path / "a", 6), run(2, trains, tmp_path / "b")
    for each, undisturbed in zip(found, whole, strict=True):
        assert each["result"] == {**undisturbed["result"], "resumed": True}
        assert each["result"]["times"] == [2] * N
        assert each["result"]["commits"] == 2 * 4
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["of rank 0"]


def test_another_number_of_ranks_goes_on(tmp_path: Path) -> None:
    run(2, only_dies, tmp_path, 3)
    for each in run(3, trains, tmp_path):
        assert (each["result"]["resumed"], each["result"]["times"]) == (True, [2] * N)


def only_dies(folder: Path, dies: int) -> None:
    with pytest.raises(KeyError, match="killed"):
        trains(folder, dies)


def test_what_one_file_cannot_hold_is_refused(subtests: pytest.Subtests, tmp_path: Path) -> None:
    no_plain_value = "the state of 'odd' must have only tensors, numbers of Python, text, lists"
    said = {
        "sharded": "'beside' is sharded, so its checkpoints need a folder that all pods share",
        "a number of NumPy": no_plain_value,
        "an object of a class": no_plain_value,
        "apart": "ranks 0 and 1 have different values of model.0.weight",
    }
    assert_ends(subtests, 2, [((trains, tmp_path / how, None, how), 2, each) for how, each in said.items()])


def changes(folder: Path) -> None:
    training = Witness(N)
    with Account("t", plan={"train": 1}) as account:
        account.loader(Noisy(N), "train", batch_size=SIZE)
        account.checkpoints(folder, training.objects, of_rank_0=True).resume()
        dist.barrier()


def test_objects_of_other_names_are_refused(tmp_path: Path) -> None:
    run(1, only_dies, tmp_path, 3)
    for each in run(1, changes, tmp_path / "of rank 0"):
        assert each["code"] == 2
        assert "cannot be taken up: it holds {" in each["err"]


class Other(torch.optim.SGD):
    """Another kind of optimizer."""


def goes_on_otherwise(folder: Path, how: str) -> bool:
    """Whether it has resumed."""
    training = Witness(N)
    objects: dict[str, Any] = {**training.objects, "odd": Odd({"commits": 0})}
    name = next(name for name, each in objects.items() if isinstance(each, torch.optim.Optimizer))
    if how == "kind":
        objects[name] = Other(objects[name].param_groups)
    if how == "wrapped":
        objects["model"] = torch.nn.parallel.DistributedDataParallel(objects["model"])
    with Account("t", plan={"train": 2}, anew=how == "anew") as account:
        account.loader(Noisy(N), "train", batch_size=SIZE)
        kept = account.checkpoints(folder, objects, of_rank_0=how not in ("all", "anew"))
        resumed = kept.resume()
        raise KeyError(resumed)


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("kind", "cannot be taken up: it holds {"),
        ("all", "are those of rank 0: pass of_rank_0=True, or choose another folder"),
    ],
)
def test_what_was_saved_otherwise_is_refused(how: str, sentence: str, tmp_path: Path) -> None:
    run(1, only_dies, tmp_path, 3)
    (found,) = run(1, goes_on_otherwise, tmp_path / "of rank 0", how)
    assert (found["code"], sentence in found["err"]) == (2, True), found["err"]


def wrapped(folder: Path) -> None:
    with pytest.raises(KeyError, match="True"):
        goes_on_otherwise(folder, "wrapped")


def test_a_model_may_be_wrapped_otherwise(tmp_path: Path) -> None:
    run(1, only_dies, tmp_path, 3)
    (found,) = run(1, wrapped, tmp_path / "of rank 0")
    assert found["code"] == 0, found["err"]


def begins(folder: Path, how: str) -> None:
    with pytest.raises(KeyError, match="False"):
        goes_on_otherwise(folder, how)


def test_what_was_saved_otherwise_may_be_left_behind(tmp_path: Path) -> None:
    run(1, only_dies, tmp_path, 3)
    (found,) = run(1, begins, tmp_path / "of rank 0", "anew")
    assert found["code"] == 0, found["err"]


def test_a_file_of_another_name_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "model.checkpoint").write_text("of another program")
    (found,) = run(1, begins, tmp_path, "all")
    assert found["code"] == 0, found["err"]


def saves_together(folder: Path) -> None:
    training = Witness(N)
    with pytest.raises(KeyError), Account("t", plan={"train": 2}) as account:
        account.loader(Noisy(N), "train", batch_size=SIZE)
        kept = account.checkpoints(folder, training.objects)
        kept.resume()
        kept.save(wait=True)
        raise KeyError("killed")


def test_a_folder_of_all_ranks_is_not_passed_over(tmp_path: Path) -> None:
    run(1, saves_together, tmp_path)
    (found,) = run(1, goes_on_otherwise, tmp_path, "one")
    assert found["code"] == 2
    assert "are of a folder that all pods share: leave out of_rank_0, or choose another folder" in found["err"]
