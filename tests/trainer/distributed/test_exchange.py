"""What ranks tell each other: values, never code."""

import os
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist

import torchtally
from torchtally import exchange

VALUES: list[Any] = [None, [1, 2.5, "three"], {"loss": float("inf"), "large": 1 << 80}]
TENSORS: list[Any] = [None, [torch.arange(3), []], {"rows": torch.ones(2, 2, dtype=torch.bfloat16), "seen": (1, "a")}]


class Command:
    """What an unpickler runs."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._mark),)


def exchanged(rank: int, world: int, store: Any) -> list[Any]:
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    found = [
        exchange.all_gather(VALUES[rank]),
        exchange.gather(VALUES[rank]),
        exchange.gather(TENSORS[rank], form=exchange.TENSORS),
        *(exchange.broadcast(VALUES[rank], src) for src in range(world)),
        exchange.broadcast(TENSORS[rank], 2, form=exchange.TENSORS),
    ]
    dist.destroy_process_group()
    return found


def test_ranks_exchange_values_of_unequal_sizes() -> None:
    found = ranks.run(3, exchanged)
    for rank, (everyone, gathered, tensors, *broadcast, of_the_last) in enumerate(found):
        assert everyone == broadcast == VALUES
        assert gathered == (VALUES if rank == 0 else None)
        assert (tensors is None) == (rank != 0)
        assert torch.equal(of_the_last["rows"], TENSORS[2]["rows"])
        assert of_the_last["seen"] == (1, "a")
    assert torch.equal(found[0][2][1][0], torch.arange(3))


def sent_by_a_stranger(rank: int, world: int, store: Any, mark: Path, name: str) -> str:
    """Rank 1 sends a pickled command where the others expect a value."""
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    form: exchange.Form = getattr(exchange, name)
    theirs = exchange.Form(lambda value: pickle.dumps(Command(mark)), form.read) if rank == 1 else form
    try:
        exchange.broadcast(None, 1, form=theirs)
    except (TypeError, ValueError) as error:
        return str(error)
    finally:
        dist.destroy_process_group()
    return "believed"


@pytest.mark.parametrize("form", ["JSON", "TENSORS"])
def test_a_command_from_a_peer_is_not_run(tmp_path: Path, form: str) -> None:
    pickle.loads(pickle.dumps(Command(tmp_path / "unpickled")))
    assert (tmp_path / "unpickled").exists()
    refused = ranks.run(2, sent_by_a_stranger, tmp_path / "mark", form)
    assert "believed" not in refused
    assert not (tmp_path / "mark").exists()


def test_no_object_of_a_peer_is_unpickled() -> None:
    """torch.distributed's calls for objects unpickle them."""
    calls = re.compile(r"\b(all_gather|gather|scatter|broadcast|send|recv)_object(_list)?\(|pickle\.loads?\(")
    package = Path(torchtally.__file__).parent
    found = [f"{path}: {call[0]}" for path in package.rglob("*.py") for call in calls.finditer(path.read_text())]
    assert not found
