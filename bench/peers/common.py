"""Shared parts of the peers' scripts: data in the form of torchvision's datasets, models, clock."""

import gzip
import json
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed.nn  # imported after the group it would keep the group, and abort at exit (pytorch#190489)
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

try:
    from PIL import Image
except ModuleNotFoundError:  # an image with PyTorch alone, as in blog.yaml: samples then skip PIL
    Image = None  # type: ignore[assignment]

BATCH = int(os.environ.get("BENCH_BATCH", "32"))  # samples of each rank in a step, except of a GPT
LEARNING_RATE = 1e-3
_WARM_UP = 20  # steps


@dataclass(frozen=True)
class Normalize:
    """torchvision's transform of this name."""

    mean: float
    deviation: float


_FOLDERS = {"fashion-mnist": "fashion-mnist", "mnist-cnn": "mnist", "keras-mnist": "mnist"}
_MOMENTUM = {"fashion-mnist": 0.0, "mnist-cnn": 0.5}
_NORMALIZE = {"mnist-cnn": Normalize(0.1307, 0.3081)}


class Images(Dataset[tuple[Tensor, int]]):
    """Like torchvision's MNIST with ToTensor: each sample becomes a PIL image and then a tensor."""

    def __init__(self, folder: Path, normalize: Normalize | None) -> None:
        self._images = _read(folder, "train-images-idx3-ubyte", 16).view(-1, 28, 28)
        self._labels = _read(folder, "train-labels-idx1-ubyte", 8)
        self._normalize = normalize

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """All pixels (n, 28, 28) as uint8, and all labels."""
        return self._images, self._labels.long()

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self._images[index].numpy()
        pixels = to_tensor(Image.fromarray(image) if Image else image)
        if self._normalize:
            pixels = pixels.sub_(self._normalize.mean).div_(self._normalize.deviation)
        return pixels, int(self._labels[index])


def dataset(task: str, folder: Path) -> Dataset[Any]:
    """The dataset in the form of the model's source: torchvision's, or one tensor as in Keras' guide."""
    if task.startswith("image-folder"):
        from bench.peers import images as files  # as below: imported where it is needed

        return files.dataset(folder, task)
    images = Images(folder / _FOLDERS[task], _NORMALIZE.get(task))
    if task != "keras-mnist":
        return images
    pixels, labels = images.tensors
    return TensorDataset(pixels.float().unsqueeze(-1), labels)


def to_tensor(image: "Image.Image | np.ndarray") -> Tensor:
    """torchvision's ToTensor, whose package needs CUDA's libraries: grey pixels (1, height, width) in [0, 1]."""
    pixels = torch.from_numpy(np.array(image, np.uint8, copy=True))
    return pixels.view(*pixels.shape, 1).permute(2, 0, 1).contiguous().float().div(255)


def workers(task: str) -> int:
    """Processes that load the data: those that decode files share the cores, as the threads of torchtally's task do."""
    if not task.startswith("image-folder"):
        return 0
    return max(1, len(os.sched_getaffinity(0)) // int(os.environ["LOCAL_WORLD_SIZE"]))


def bfloat16(task: str) -> bool:
    """Whether the model computes in bfloat16 where autocast permits it, as in torchtally's task of this name."""
    return task.startswith("image-folder")


def device() -> torch.device:
    """The device in BENCH_DEVICE; the CPU by default."""
    return torch.device(os.environ.get("BENCH_DEVICE", "cpu"))


def on_gpu() -> bool:
    """Whether it is a GPU. Then memory is pinned and copied without blocking, as each tool's documentation advises."""
    return device().type == "cuda"


def backend() -> str:
    """That of the process group: BENCH_BACKEND, by default the device's."""
    return os.environ.get("BENCH_BACKEND", "nccl" if on_gpu() else "gloo")


def shuffled(dataset: Dataset[Any], batch: int = BATCH, workers: int = 0) -> DataLoader[Any]:
    """The data of a library that gives each rank its own part."""
    return DataLoader(dataset, batch_size=batch, shuffle=True, num_workers=workers, pin_memory=on_gpu())


def model(task: str) -> nn.Module:
    """The model of torchtally's task of this name."""
    if task == "fashion-mnist":
        return nn.Sequential(
            nn.Flatten(), nn.Linear(28 * 28, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
        )
    if task == "keras-mnist":
        from bench.peers.keras_model import AsModule  # an import takes seconds

        return AsModule()
    if task.startswith("image-folder"):
        from torchvision.models import resnet18

        network: nn.Module = resnet18(num_classes=10)
        return network
    return nn.Sequential(
        nn.Conv2d(1, 10, kernel_size=5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(10, 20, kernel_size=5),
        nn.Dropout2d(),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(320, 50),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(50, 10),
        nn.LogSoftmax(dim=1),
    )


def optimizer(task: str, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer of torchtally's task of this name, with default arguments otherwise."""
    if task == "keras-mnist":
        return torch.optim.Adam(parameters, lr=6e-3)
    if task.startswith("image-folder"):
        return torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=0.05)
    return torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=_MOMENTUM[task])


class Clock:
    """Counts steps, and times them after a warm-up."""

    def __init__(self, steps: int, warm_up: int = _WARM_UP, batch: int = BATCH) -> None:
        self.steps, self._warm_up, self._batch = warm_up + steps, warm_up, batch
        # Lightning removes them at its end.
        self._rank, self._world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        self._done = 0
        self._first = self._began = self._ended = 0.0

    def step(self) -> bool:
        """Count a step; returns whether it was the last."""
        self._done += 1
        if self._done == 1:
            self._first = time.time()
        if self._done == self._warm_up:
            self._began = now()
        if self._done == self.steps:
            self._ended = now()
        return self._done == self.steps

    def report(self) -> None:
        """Print the samples of all ranks and the seconds, on rank 0. A step ends on all ranks together.

        Raises ValueError if the data ended before the last step.
        """
        if self._done < self.steps:
            raise ValueError(f"the data ended after {self._done} of {self.steps} steps")
        if self._rank == 0:
            samples = (self.steps - self._warm_up) * self._batch * self._world
            seconds = self._ended - self._began
            print(json.dumps({"samples": samples, "seconds": seconds, "first_step": self._first}), flush=True)


def arguments() -> tuple[str, Dataset[Any], Clock]:
    """The task, its data and the clock, from the command line: TASK FOLDER STEPS."""
    task, folder, steps = sys.argv[1:]
    slow = task.startswith("image-folder") and not on_gpu()
    clock = Clock(int(steps), warm_up=2) if slow else Clock(int(steps))
    return task, dataset(task, Path(folder)), clock


def now() -> float:
    """The time once the device has done what it was given."""
    if on_gpu():
        torch.cuda.synchronize()
    return time.perf_counter()


def _read(folder: Path, name: str, header: int) -> Tensor:
    packed = folder / f"{name}.gz"
    contents = gzip.decompress(packed.read_bytes()) if packed.exists() else (folder / name).read_bytes()
    return torch.from_numpy(np.frombuffer(contents, np.uint8, offset=header).copy())
