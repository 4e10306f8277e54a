"""The images of a training; threads decode and transform them while the two steps before theirs are trained."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import loky
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from torchtally.errors import Refused

_RESIZED = 256 / 224  # of the shorter side to the crop of an evaluation, as in torchvision's own


@dataclass(frozen=True)
class Labeled:
    """The images of a phase."""

    files: list[str]
    labels: list[int]


@dataclass(frozen=True, kw_only=True)
class Data:
    """The images of both phases."""

    classes: list[str]
    train: Labeled
    test: Labeled
    fingerprint: str


@dataclass
class _Step:
    """The images of a step in the making."""

    numbers: tuple[int, ...]
    seed: int | None
    decoded: list[Future[Tensor]]
    pixels: Iterator[Tensor] | None = None  # in the order of the numbers


class Images:
    """Pixels by index: uint8 (rows, 3, size, size). With `augmented`, crops and flips are random.

    Random values are drawn by the calling thread, in the order of the rows, so the same seed gives the same pixels. A
    step that was begun has a seed of its own. Other rows take PyTorch's generator as it is.
    """

    def __init__(self, files: Sequence[str], size: int, *, augmented: bool, device: torch.device | None = None):
        self._files, self._size, self._augmented = files, size, augmented
        self._device = device or torch.device("cpu")
        self._ahead: deque[_Step] = deque()

    def __len__(self) -> int:
        return len(self._files)

    def to(self, device: torch.device) -> "Images":
        return Images(self._files, self._size, augmented=self._augmented, device=device)

    def begin(self, chosen: Tensor, seed: int) -> None:
        """Begin to decode the images of a step to come, and to transform those that were begun before."""
        for step in self._ahead:
            if step.pixels is None:
                self._transform(step)
        self._ahead.append(self._decode(tuple(chosen.tolist()), seed))

    def __getitem__(self, chosen: Tensor | slice) -> Tensor:
        numbers = tuple(range(*chosen.indices(len(self))) if isinstance(chosen, slice) else chosen.tolist())
        pixels = self._random(numbers) if self._augmented else self._threads.map(self._centered, self._paths(numbers))
        rows = torch.stack([torch.empty(3, self._size, self._size, dtype=torch.uint8), *pixels])[1:]
        if self._device.type == "cuda":  # a copy from other memory would wait for the step before
            rows = rows.pin_memory()
        return rows.to(self._device, non_blocking=True)

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        return ThreadPoolExecutor(max(1, loky.cpu_count() // ranks), "torchtally-images")

    @cached_property
    def _crop(self) -> Any:
        return v2.RandomResizedCrop(self._size)

    def _random(self, numbers: tuple[int, ...]) -> Iterator[Tensor]:
        begun = bool(self._ahead) and self._ahead[0].numbers == numbers
        step = self._ahead.popleft() if begun else self._decode(numbers)
        return step.pixels or self._transform(step)

    def _decode(self, numbers: tuple[int, ...], seed: int | None = None) -> "_Step":
        return _Step(numbers, seed, [self._threads.submit(_decoded, each) for each in self._paths(numbers)])

    def _paths(self, numbers: Sequence[int]) -> list[str]:
        return [self._files[number] for number in numbers]

    def _transform(self, step: "_Step") -> Iterator[Tensor]:
        decoded = [each.result() for each in step.decoded]
        with torch.random.fork_rng(devices=(), enabled=step.seed is not None):
            if step.seed is not None:
                torch.default_generator.manual_seed(step.seed)
            crops = [self._crop.make_params([each]) for each in decoded]
            flips = (torch.rand(len(decoded)) < 0.5).tolist()

        def transformed(image: Tensor, crop: dict[str, Any], flip: bool) -> Tensor:
            cropped: Tensor = self._crop.transform(image, crop)
            return functional.horizontal_flip(cropped) if flip else cropped

        step.decoded.clear()
        step.pixels = self._threads.map(transformed, decoded, crops, flips)
        return step.pixels

    def _centered(self, path: str) -> Tensor:
        return _centered(self._size)(_decoded(path))


def _centered(size: int) -> Callable[[Tensor], Tensor]:
    centered: Callable[[Tensor], Tensor] = v2.Compose([v2.Resize(round(size * _RESIZED)), v2.CenterCrop(size)])
    return centered


def _decoded(path: str) -> Tensor:
    """Pixels (3, height, width) as uint8. Raises Refused."""
    try:
        with Image.open(path) as image:
            pixels: Tensor = functional.pil_to_tensor(image.convert("RGB"))
        return pixels
    except (OSError, ValueError, SyntaxError) as error:
        raise Refused(
            f"the image {path} (--data) cannot be decoded: {str(error).splitlines()[0]}; mend or remove it"
        ) from None
