"""The peers train the same model on the same numbers as torchtally's tasks do."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from bench.peers import common
from torchtally import loop, options


@pytest.mark.parametrize(("name", "with_pil"), [("fashion-mnist", True), ("mnist-cnn", True), ("mnist-cnn", False)])
def test_model_optimizer_and_pixels_are_the_tasks_own(
    name: str, with_pil: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not with_pil:
        monkeypatch.setattr(common, "Image", None)  # as where it is not installed
    task, chosen = loop.task(name), options.TASKS[name]()
    model = task.model(chosen)
    assert str(common.model(name)) == str(model)
    optimizer = task.optimizer(model.parameters(), chosen)
    assert optimizer.defaults["lr"] == common.LEARNING_RATE
    assert optimizer.defaults["momentum"] == common.MOMENTUM[name]

    pixels = np.random.default_rng(0).integers(0, 256, (3, 28, 28), np.uint8)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(bytes(16) + pixels.tobytes()))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(bytes(8) + bytes([7, 8, 9]))
    images = common.Images(tmp_path, common.NORMALIZE[name])
    batch = torch.stack([images[index][0] for index in range(3)])
    ours = task.inputs(torch.from_numpy(pixels))
    torch.testing.assert_close(batch.view_as(ours), ours)
    assert [images[index][1] for index in range(3)] == [7, 8, 9]


def test_the_loop_by_hand_takes_an_epoch_of_the_same_samples(tmp_path: Path) -> None:
    folder = tmp_path / "fashion-mnist"
    folder.mkdir()
    (folder / "train-images-idx3-ubyte").write_bytes(bytes(16) + bytes(96 * 28 * 28))
    (folder / "train-labels-idx1-ubyte").write_bytes(bytes(8) + bytes(96))
    command = [sys.executable, "-m", "bench.peers.by_hand", str(tmp_path)]
    told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert told["samples"] == 96 and told["seconds"] > 0
