"""The task image-folder: any model of torchvision, killed and resumed to the same bits, and what it refuses."""

import json
import sys
from pathlib import Path
from typing import Any

import clean_log
import pytest
import torch
from accounts import tallied
from PIL import Image
from safetensors.torch import save_file
from task_runs import killed_and_resumed, reported, whole
from torchvision import models
from torchvision.transforms.v2 import functional

from torchtally import events, tasks
from torchtally.errors import Refused
from torchtally.tasks.image_folder import folder
from torchtally.tasks.image_folder import task as image_folder
from torchtally.tasks.image_folder.images import Images
from torchtally.tasks.image_folder.options import Options

CLASSES = ("bright", "dark", "medium")
TINY = ("--model", "shufflenet_v2_x0_5", "--batch-size", "5")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noise, brighter in some classes than in others: 17 images of each to train with, and 7 to test with."""
    root = tmp_path_factory.mktemp("images")
    random = torch.Generator().manual_seed(0)
    for phase, count in (("train", 17), ("val", 7)):
        for brightness, name in zip((3, 1, 2), CLASSES, strict=True):
            (root / phase / name).mkdir(parents=True)
            for number in range(count):
                pixels = torch.randint(0, 64 * brightness, (3, 40, 36 + number), generator=random, dtype=torch.uint8)
                functional.to_pil_image(pixels).save(root / phase / name / f"{number}.png")
    return root


def test_killed_in_an_epoch_it_goes_on_to_the_same_bits(data: Path, tmp_path: Path) -> None:
    """Crops and flips are random, so equal bits also say that they are drawn again as they were."""
    train = ["run", "image-folder", *TINY, "--epochs", "3", "--lr", "0.003", "--save-seconds", "0.001"]
    undisturbed = whole(data, tmp_path / "undisturbed", 2, *train)
    clean_log.assert_clean(undisturbed)
    second = killed_and_resumed(data, tmp_path / "killed", (2, 2), *train)
    before, after = tallied(undisturbed)[-1], tallied(second)[-1]
    assert after["model"] == before["model"]
    assert after["phases"]["train"]["consumed"] == 3 * (51 - 51 % 2)  # drop_last, as the model has BatchNorm
    epochs = reported(undisturbed, events.Epoch)
    assert json.loads((tmp_path / "killed/classes.json").read_text()) == list(CLASSES)

    evaluated = whole(
        data, tmp_path, 3, "evaluate", "image-folder", *TINY[:2], "--checkpoint", str(tmp_path / "killed")
    )
    assert f"({round(epochs[-1].test_accuracy * 21)} of 21)" in evaluated


def test_a_model_without_batch_norm_trains_on_every_sample_once_and_learns(data: Path, tmp_path: Path) -> None:
    small = ["--model", "squeezenet1_1", "--size", "32", "--batch-size", "5"]  # its loss falls with any seed
    printed = whole(data, tmp_path, 2, "run", "image-folder", *small, "--epochs", "4", "--lr", "0.0003")
    lines = tallied(printed)
    assert lines[-1]["phases"]["train"]["consumed"] == 4 * 51
    assert lines[-1]["phases"]["test"]["consumed"] == 4 * 21
    epochs = reported(printed, events.Epoch)
    assert epochs[-1].loss < epochs[0].loss


def test_pixels_follow_from_the_seed_and_those_of_a_test_from_the_image_alone(data: Path) -> None:
    found = folder.scan(data)
    train = Images(found.train.files, 16, augmented=True)
    twice = []
    for _ in range(2):
        torch.manual_seed(3)
        twice.append(train[torch.tensor([5, 0, 5, 40])])
    assert torch.equal(*twice)
    assert not torch.equal(twice[0][0], twice[0][2])  # another crop of the same image
    test = Images(found.test.files, 16, augmented=False)
    assert torch.equal(test[torch.tensor([2, 1])], torch.stack([test[1:3][1], test[1:3][0]]))
    assert test[torch.tensor([], dtype=torch.int64)].shape == (0, 3, 16, 16)


@pytest.mark.parametrize("ahead", [1, 3])
def test_a_step_that_was_begun_has_the_pixels_of_its_seed_and_draws_no_other_random_number(
    ahead: int, data: Path
) -> None:
    train = Images(folder.scan(data).train.files, 16, augmented=True)
    steps = [torch.tensor(numbers, dtype=torch.int64) for numbers in ([5, 0], [7], [5, 0], [], [5, 0])]
    expected = []
    for seed, step in enumerate(steps):
        torch.manual_seed(seed)
        expected.append(train[step])
    torch.manual_seed(100)
    state = torch.get_rng_state()
    for seed, step in enumerate(steps[:ahead]):
        train.begin(step, seed)
    for number, step in enumerate(steps):
        if (then := number + ahead) < len(steps):
            train.begin(steps[then], then)
        assert torch.equal(train[step], expected[number])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("kind", ["safetensors", "pt"])
def test_fine_tuning_begins_with_given_weights_but_for_a_head_of_other_classes(kind: str, tmp_path: Path) -> None:
    given = models.get_model("shufflenet_v2_x0_5", num_classes=7)
    file = tmp_path / f"weights.{kind}"
    if kind == "pt":
        torch.save(given.state_dict(), file)
    else:
        save_file(given.state_dict(), file)
    model = image_folder.first_model(Options(model="shufflenet_v2_x0_5", weights=str(file)), 3)
    assert model.eval()(torch.rand(2, 3, 32, 32)).shape == (2, 3)
    for name, value in model.state_dict().items():
        assert name.startswith("fc.") or torch.equal(value, given.state_dict()[name]), name

    with pytest.raises(Refused, match=r"weights\.\w+ does not fit the model: it (has|has no) \S+"):
        image_folder.first_model(Options(model="resnet18", weights=str(file)), 7)
    wider = {
        name: value.new_zeros(3, 9) if name == "fc.weight" else value for name, value in given.state_dict().items()
    }
    save_file(wider, file) if kind == "safetensors" else torch.save(wider, file)
    with pytest.raises(Refused, match=r"its fc.weight has the shape \(3, 9\) and the model's has \(2, 1024\)"):
        image_folder.first_model(Options(model="shufflenet_v2_x0_5", weights=str(file)), 2)
    file.write_bytes(b"not weights")
    with pytest.raises(Refused, match="cannot be read"):
        image_folder.first_model(Options(model="shufflenet_v2_x0_5", weights=str(file)), 7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "resnet19"}, "--model resnet19 must be a classification model of torchvision, such as resnet18"),
        ({"model": "fasterrcnn_resnet50_fpn"}, "must be a classification model"),
        ({"model": "inception_v3"}, "--model inception_v3 does not take images of --size 32"),
        ({"model": "vit_b_16", "size": 40}, "--model vit_b_16 does not take images of --size 40"),
    ],
)
def test_a_model_that_cannot_be_is_refused(data: Path, options: dict[str, Any], message: str) -> None:
    chosen = Options(data=data, **options)
    with pytest.raises(Refused) as refused:
        tasks.load("image-folder", chosen).model(chosen)
    assert message in str(refused.value)


def test_without_torchvision_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.delitem(sys.modules, image_folder.__name__)
    with pytest.raises(Refused, match="the task image-folder needs the Python package torchvision: pip install torch"):
        tasks.load("image-folder")


def test_data_that_cannot_be_trained_on_is_refused_by_name(data: Path, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"must hold the folders train and val or test"):
        folder.scan(tmp_path)
    for phase, names in (("train", "ab"), ("val", "a")):
        for name in names:
            (tmp_path / phase / name).mkdir(parents=True)
            Image.new("L", (4, 4)).save(tmp_path / phase / name / "1.png")
    with pytest.raises(Refused, match="val has the classes a, and train has a, b"):
        folder.scan(tmp_path)
    (tmp_path / "val/b").mkdir()
    (tmp_path / "val/b/1.png").write_bytes(b"no image")
    broken = Images(folder.scan(tmp_path).test.files, 8, augmented=False)
    with pytest.raises(Refused, match=r"val/b/1\.png \(--data\) cannot be decoded"):
        broken[0:2]


def test_other_files_are_other_data(data: Path, tmp_path: Path) -> None:
    """The ranks of pods with different folders refuse to train together."""
    before = folder.scan(data).fingerprint
    extra = data / "val/dark/more.png"
    Image.new("RGB", (5, 5)).save(extra)
    try:
        assert folder.scan(data).fingerprint != before
    finally:
        extra.unlink()
    assert folder.scan(data).fingerprint == before
