"""The peers train the same model on the same numbers as torchtally's tasks do."""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench.peers import common
from torchtally import tasks

CASES = [("fashion-mnist", True), ("mnist-cnn", True), ("mnist-cnn", False), ("keras-mnist", True)]


def described(model: torch.nn.Module) -> list[object]:
    """What it is made of: what torch says of it, or Keras, but for the names that it gives in passing."""
    network: Any = getattr(model, "network", None)
    if network is None:
        return [str(model)]
    layers = [(type(layer), {**layer.get_config(), "name": None}) for layer in network.layers]
    return [*layers, *(tuple(each.shape) for each in network.weights)]


@pytest.mark.parametrize(("name", "with_pil"), CASES)
def test_model_optimizer_and_pixels_are_the_tasks_own(
    name: str, with_pil: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not with_pil:
        monkeypatch.setattr(common, "Image", None)  # as where it is not installed
    if name == "keras-mnist":
        pytest.importorskip("bench.peers.keras_model")
    task, chosen = tasks.load(name), tasks.OPTIONS[name]()
    model = task.model(chosen)
    assert described(common.model(name)) == described(model)
    optimizer = task.optimizer(model.parameters(), chosen)
    peers = common.optimizer(name, common.model(name).parameters())
    assert type(peers) is type(optimizer)
    assert peers.defaults | {"fused": True} == optimizer.defaults

    pixels = np.random.default_rng(0).integers(0, 256, (3, 28, 28), np.uint8)
    folder = tmp_path / ("fashion-mnist" if name == "fashion-mnist" else "mnist")
    folder.mkdir()
    (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(bytes(16) + pixels.tobytes()))
    (folder / "train-labels-idx1-ubyte").write_bytes(bytes(8) + bytes([7, 8, 9]))
    images = common.dataset(name, tmp_path)
    batch = torch.stack([images[index][0] for index in range(3)])
    ours = task.inputs(torch.from_numpy(pixels))
    torch.testing.assert_close(batch.view_as(ours), ours)
    assert [images[index][1] for index in range(3)] == [7, 8, 9]


def test_a_keras_model_is_in_the_mode_that_was_set() -> None:
    pytest.importorskip("bench.peers.keras_model")
    model, pixels = common.model("keras-mnist"), torch.rand(4, 28, 28, 1) * 255
    statistics = [each.clone() for each in model.parameters() if not each.requires_grad]
    assert torch.equal(model.eval()(pixels), model(pixels))
    assert not torch.equal(model.train()(pixels), model(pixels))  # its dropout
    after = [each for each in model.parameters() if not each.requires_grad]
    assert not all(torch.equal(*both) for both in zip(statistics, after, strict=True))


def test_the_loop_by_hand_takes_an_epoch_of_the_same_samples(tmp_path: Path) -> None:
    folder = tmp_path / "fashion-mnist"
    folder.mkdir()
    (folder / "train-images-idx3-ubyte").write_bytes(bytes(16) + bytes(96 * 28 * 28))
    (folder / "train-labels-idx1-ubyte").write_bytes(bytes(8) + bytes(96))
    command = [sys.executable, "-m", "bench.peers.by_hand", str(tmp_path)]
    told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert told["samples"] == 96 and told["seconds"] > 0
