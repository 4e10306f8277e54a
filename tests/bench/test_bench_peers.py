"""The peers train the same model on the same numbers as torchtally's tasks do."""

import gzip
import os
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench.peers import common, forked, images
from torchtally import tasks
from torchtally.tasks.image_folder import images as image_folder

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


def test_a_resnet_and_its_images_are_the_tasks_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "image-folder-64"
    monkeypatch.setitem(images.COUNTS, name, 10)
    root = images.folder(tmp_path, name)
    monkeypatch.setenv("TORCHTALLY_DATA", str(root))
    chosen = tasks.OPTIONS["image-folder"](size=64)
    task = tasks.load("image-folder", chosen)
    model = task.model(chosen)
    assert described(common.model(name)) == described(model)
    optimizer, peers = task.optimizer(model.parameters(), chosen), common.optimizer(name, model.parameters())
    assert peers.defaults | {"fused": True} == optimizer.defaults

    files: Any = common.dataset(name, tmp_path)
    files.transform.transforms[:2] = []  # what is random
    ours, _ = task.load(None, tmp_path)
    whole: Any = ours.inputs
    decoded = torch.stack([image_folder._decoded(each) for each in whole._files[:10]])
    torch.testing.assert_close(torch.stack([files[index][0] for index in range(10)]), task.inputs(decoded))
    assert [files[index][1] for index in range(10)] == ours.labels.tolist()
    assert common.bfloat16(name) == (chosen.precision == "bfloat16")


def test_ranks_that_are_forked_tell_what_rank_0_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = """
        import os, sys
        import torch, torch.distributed as dist
        def main():
            dist.init_process_group("gloo")
            ranks = torch.tensor(int(os.environ["RANK"]) + 1)
            dist.all_reduce(ranks)
            print(sys.argv[1:], ranks.item(), "of", os.environ["LOCAL_WORLD_SIZE"])
            dist.destroy_process_group()
            sys.exit(int(sys.argv[1]))
    """
    (tmp_path / "some_peer.py").write_text(textwrap.dedent(peer))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    for word in ("x", "y"):  # by the same process
        assert forked.run("json", "some_peer", 2, ["0", word]) == f"['0', '{word}'] 3 of 2\n"
    with pytest.raises(RuntimeError, match="some_peer with 2 ranks has failed"):
        forked.run("json", "some_peer", 2, ["3"])


def test_a_keras_model_is_in_the_mode_that_was_set() -> None:
    pytest.importorskip("bench.peers.keras_model")
    model, pixels = common.model("keras-mnist"), torch.rand(4, 28, 28, 1) * 255
    statistics = [each.clone() for each in model.parameters() if not each.requires_grad]
    assert torch.equal(model.eval()(pixels), model(pixels))
    assert not torch.equal(model.train()(pixels), model(pixels))  # its dropout
    after = [each for each in model.parameters() if not each.requires_grad]
    assert not all(torch.equal(*both) for both in zip(statistics, after, strict=True))
