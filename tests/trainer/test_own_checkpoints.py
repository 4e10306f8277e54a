"""An account's checkpoints in programs that call them at odd moments, and go on after an error."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from accounts import alone, tallied
from counting import Counting, Noisy

from torchtally import Account

N, SIZE = 29, 4


class Odd:
    """An object that cannot take up a state."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise KeyError("version")


def trains(folder: Path, how: str = "") -> list[int]:
    training = Counting(N)
    objects: dict[str, Any] = {"odd": Odd(), "counts": training.counts, "model": training.model}
    if how == "other objects":
        del objects["model"]
    with Account(task="t", plan={"train": 1}, anew=True) as account:
        kept = account.checkpoints(folder, objects, every="9h")
        if how == "saves before it resumes":
            kept.save(wait=True)
        with contextlib.suppress(Exception):  # as a program that begins anew if there is no checkpoint to load
            kept.resume()
        if how == "saves before it has a loader":
            kept.save(wait=True)
        for batch in account.epoch("train", 1, account.loader("train", Noisy(N), batch_size=SIZE)):
            training.backward(*batch.data)
            training.step()
            account.commit()
            if batch.step == 3 and how == "saves":
                kept.save(wait=True)
    return training.times


LEFT = (".shared-0123abcd", "..shared-0123abcd.u3k_9x2a", ".run.json.u3k_9x2a")


def test_what_killed_starts_have_left_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHTALLY_OUTPUT", str(tmp_path))
    for name in (*LEFT, ".my.json.u3k_9x2a", ".shared-with-others"):
        (tmp_path / name).touch()
    assert alone(trains, tmp_path)["code"] == 0
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [
        ".in-use",
        ".my.json.u3k_9x2a",
        ".shared-with-others",
        "reached",
        "run.json",
    ]


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("saves before it resumes", "checkpoints: call resume() before"),
        ("saves before it has a loader", "checkpoints: save() needs the loader or the sampler of a phase"),
    ],
)
def test_a_save_too_early_is_refused(how: str, sentence: str, tmp_path: Path) -> None:
    found = alone(trains, tmp_path, how)
    assert found["code"] == 2, found["err"]
    assert sentence in found["err"]


@pytest.mark.parametrize(("how", "sentence"), [("", "KeyError: 'version'"), ("other objects", "and the objects are")])
def test_a_loop_does_not_go_on_with_half_of_a_checkpoint(how: str, sentence: str, tmp_path: Path) -> None:
    assert alone(trains, tmp_path, "saves")["code"] == 0
    found = alone(trains, tmp_path, how)
    assert found["code"] == 2, (found["result"], found["out"])
    assert sentence in found["err"]
    assert not tallied(found["out"])
