"""What TensorBoard's own reader finds of a run: after a restart, at a URL, and where nothing can be written."""

import math
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from accounts import alone, logs_its_loss
from accounts import run as run_ranks
from commands import alone as command_line
from torch.utils.tensorboard import SummaryWriter
from witness import Noisy, Witness

from torchtally import Account
from torchtally.accounting.ledger.tally import Run
from torchtally.accounting.run import reports
from torchtally.checkpoints import stopping
from torchtally.monitoring.tensorboard import Recorder

event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def read(folder: Path | str) -> Any:
    found = event_accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    found.Reload()
    return found


def points(found: Any, name: str) -> list[tuple[int, float]]:
    """Values as TensorBoard keeps them, in single precision."""
    return [(each.step, each.value) for each in found.Scalars(name)]


def texts(found: Any, name: str) -> list[str]:
    return [each.tensor_proto.string_val[0].decode() for each in found.Tensors(f"{name}/text_summary")]


def recorder(folder: Path | str, attempt: int = 0) -> Recorder:
    place = {"attempt": attempt, "pod": "p", "plan": {"train": 3}, "rank": 0, "world": 4, "seed": 0}
    return Recorder(str(folder), Run(run="aaa", task="toy", data="sha256:1", **place), {"lr": 0.5})


LINE = {"phase": "train"}


def test_a_run_that_starts_again_has_each_step_once(tmp_path: Path) -> None:
    """The first start has got further than the checkpoint at which the second goes on."""
    first = recorder(tmp_path)
    first.begin(0, 0.0)
    for step in range(1, 8):
        first.metrics(step, train_loss=1 / step, test_accuracy=float("nan") if step < 4 else step / 10)
    first.proof({**LINE, "lost": 0, "duplicated": 0}, True)
    first.end()
    second = recorder(tmp_path, attempt=1)
    second.begin(4, 0.5)
    for step in range(5, 11, 2):
        second.metrics(step, train_loss=100 + step)
    second.proof({**LINE, "lost": None, "duplicated": 3}, False)
    second.end()
    found = read(tmp_path)
    again = [(5, 105), (7, 107), (9, 109)]
    assert points(found, "train_loss") == [(step, pytest.approx(1 / step)) for step in range(1, 5)] + again
    assert [each.step for each in found.Scalars("test_accuracy")] == [1, 2, 3, 4]
    ((step, lost),) = points(found, "train_samples_lost")  # that of the first start is made again
    assert step == 9 and math.isnan(lost)
    assert points(found, "train_samples_duplicated") == [(9, 3)]
    assert ["attempt: 0" in text or "attempt: 1" in text for text in texts(found, "run")] == [True, True]
    assert 'data: "sha256:1"' in texts(found, "run")[0]
    assert "lr: 0.5" in texts(found, "run")[0]


def test_rank_0_alone_records_an_own_loop(tmp_path: Path) -> None:
    first, second = run_ranks(2, logs_its_loss, {"TORCHTALLY_TENSORBOARD": str(tmp_path)})
    assert (first["code"], second["code"]) == (0, 0), first["err"]
    (folder,) = tmp_path.iterdir()
    assert folder.name == f"own-{first['lines'][0]['run']}"
    assert len([*folder.iterdir()]) == 1
    found = read(folder)
    losses = points(found, "train_loss")
    assert losses[0] == (1, 1.0)
    assert losses[-1] == (6, pytest.approx(1 / 3))
    assert [lost for _, lost in points(found, "train_samples_lost")] == [0, 0]


def interrupted(folder: Path, dies: bool) -> None:
    """Two epochs of 8 steps, of which checkpoints hold some when it dies in step 6."""
    os.environ.update(TORCHTALLY_TENSORBOARD=str(folder / "board"), TORCHELASTIC_RESTART_COUNT="0" if dies else "1")
    reports._READ_SECONDS = stopping._SYNCHRONIZE_SECONDS = 0.0
    training = Witness(16)
    with Account(task="own", plan={"train": 2}) as account:
        saving = account.checkpoints(folder / "checkpoints", training.objects, every=0.001)
        saving.resume()
        loader = account.loader(Noisy(16), "train", batch_size=2)
        for epoch in account.epochs():
            for batch in account.epoch("train", epoch, loader):
                training.backward(*batch.data)
                training.step()
                account.commit()
                account.log(loss=1.0 if dies else 2.0)
                if dies and batch.step == 6:
                    saving.finish()
                    raise SystemExit(9)


def test_an_own_loop_that_resumes_has_each_step_once(tmp_path: Path) -> None:
    first = alone(interrupted, tmp_path, True)
    assert first["code"] == 9, first["err"]
    second = alone(interrupted, tmp_path, False)
    assert second["code"] == 0, second["err"]
    (folder,) = (tmp_path / "board").iterdir()
    assert len([*folder.iterdir()]) == 2
    losses = points(read(folder), "train_loss")
    assert [step for step, _ in losses] == [*range(1, 17)]
    values = [value for _, value in losses]
    assert values == sorted(values)
    assert (values[0], values[5]) == (1.0, 2.0)


def test_a_task_is_recorded_by_an_option(environment: dict[str, str], tmp_path: Path) -> None:
    options = ["--epochs", "2", "--batch-size", "250", "--hidden", "8", "--tensorboard", str(tmp_path / "board")]
    ended = command_line(environment, ["run", "fashion-mnist", *options])
    assert ended.returncode == 0, ended.stderr
    (folder,) = (tmp_path / "board").iterdir()
    found = read(folder)
    logged = [step for step, _ in points(found, "train_loss")]
    assert logged == sorted(logged)
    assert logged[0] == 100
    assert logged[-1] == 440
    assert [step for step, _ in points(found, "train_epoch_loss")] == [240, 480]
    assert [step for step, _ in points(found, "test_accuracy")] == [240, 480]


def test_a_url_takes_the_record_as_a_folder_does() -> None:
    """Of a store that fsspec knows, in memory."""
    record = recorder("memory://board/run")
    record.begin(0, 0.0)
    record.metrics(1, train_loss=0.5)
    record.end()
    assert points(read("memory://board/run"), "train_loss") == [(1, 0.5)]


def test_what_cannot_be_written_is_said_once_and_ends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    record = recorder(tmp_path / "file" / "board")
    record.begin(0, 0.0)
    for step in range(1, 9):
        record.metrics(step, train_loss=1.0)
    record.proof({**LINE, "lost": 0, "duplicated": 0}, True)
    record.end()
    assert capsys.readouterr().err.count("does not take TensorBoard's record of this run") == 1


def test_a_store_that_never_answers_does_not_hold_up_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recorder, "patience", 0.1)
    record, answer = recorder(tmp_path), threading.Event()
    record.begin(0, 0.0)
    monkeypatch.setattr(SummaryWriter, "close", lambda writer: answer.wait())
    record.end()
    answer.set()
    assert capsys.readouterr().err.count("does not take TensorBoard's record of this run") == 1
