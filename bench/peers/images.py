"""Files of images for the task image-folder, and the dataset that torchvision's recipes make of them."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import interpolate
from torch.utils.data import Dataset
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

SIZES = {"image-folder-64": 64, "image-folder-224": 224}
COUNTS = {"image-folder-64": 5120, "image-folder-224": 640}  # to train with: more than what is measured takes
_CLASSES, _TESTS = 10, 20
_MEAN, _DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def folder(cache: Path, task: str) -> Path:
    """The folder with the files of a task, which are made on first use: smooth shapes and some noise, as in photos."""
    root = cache / "bench" / task
    if not root.exists():
        root.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root.parent) as temporary:
            make(Path(temporary, "whole"), SIZES[task], COUNTS[task])
            shutil.move(Path(temporary, "whole"), root)
    return root


def make(root: Path, size: int, count: int) -> None:
    """Write so many files to train with, and a few to test with."""
    random = torch.Generator().manual_seed(0)
    for phase, files in (("train", count), ("val", _TESTS)):
        for number in range(files):
            place = root / phase / str(number % _CLASSES)
            place.mkdir(parents=True, exist_ok=True)
            image = functional.to_pil_image(_pixels(size, random))
            image.save(place / f"{number:05}.jpg", quality=90)


def dataset(cache: Path, task: str) -> Dataset[Any]:
    """As torchvision's recipes and the examples of Accelerate and Lightning read them."""
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(SIZES[task]),
            v2.RandomHorizontalFlip(),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(_MEAN, _DEVIATION),
        ]
    )
    found: Dataset[Any] = ImageFolder(str(folder(cache, task) / "train"), transform)
    return found


def _pixels(size: int, random: torch.Generator) -> torch.Tensor:
    shapes = interpolate(torch.rand(1, 3, 8, 8, generator=random), size, mode="bicubic")[0]
    noise = torch.randn(3, size, size, generator=random) / 32
    return (255 * (shapes + noise)).clamp(0, 255).to(torch.uint8)
