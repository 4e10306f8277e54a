"""Images that are decoded and transformed when a step needs them, by threads."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import loky
import torch
from torch import Tensor
from torchvision.datasets.folder import pil_loader
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from torchtally.errors import Refused

_RESIZED = 256 / 224  # of the shorter side to the crop of an evaluation, as in torchvision's own


class Images:
    """Pixels by index: uint8 (rows, 3, size, size). With `augmented`, crops and flips are random.

    Random values are drawn by the calling thread, in the order of the rows, so the same seed gives the same pixels.
    """

    def __init__(self, paths: list[str], size: int, *, augmented: bool, device: torch.device | None = None):
        self._paths, self._size, self._augmented = paths, size, augmented
        self._device = device or torch.device("cpu")

    def __len__(self) -> int:
        return len(self._paths)

    def to(self, device: torch.device) -> "Images":
        return Images(self._paths, self._size, augmented=self._augmented, device=device)

    def __getitem__(self, chosen: Tensor | slice) -> Tensor:
        numbers: Iterable[int] = range(*chosen.indices(len(self))) if isinstance(chosen, slice) else chosen.tolist()
        paths = [self._paths[number] for number in numbers]
        pixels = self._random(paths) if self._augmented else self._threads.map(self._centered, paths)
        return torch.stack([torch.empty(3, self._size, self._size, dtype=torch.uint8), *pixels])[1:].to(self._device)

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        return ThreadPoolExecutor(max(1, loky.cpu_count() // ranks), "torchtally-images")

    @cached_property
    def _crop(self) -> Any:
        return v2.RandomResizedCrop(self._size)

    def _random(self, paths: list[str]) -> Iterable[Tensor]:
        decoded = [*self._threads.map(_decoded, paths)]
        crops = [self._crop.make_params([each]) for each in decoded]
        flips = (torch.rand(len(decoded)) < 0.5).tolist()

        def transformed(image: Tensor, crop: dict[str, Any], flip: bool) -> Tensor:
            cropped: Tensor = self._crop.transform(image, crop)
            return functional.horizontal_flip(cropped) if flip else cropped

        return self._threads.map(transformed, decoded, crops, flips)

    def _centered(self, path: str) -> Tensor:
        return _centered(self._size)(_decoded(path))


def _centered(size: int) -> Callable[[Tensor], Tensor]:
    centered: Callable[[Tensor], Tensor] = v2.Compose([v2.Resize(round(size * _RESIZED)), v2.CenterCrop(size)])
    return centered


def _decoded(path: str) -> Tensor:
    """Pixels (3, height, width) as uint8. Raises Refused."""
    try:
        pixels: Tensor = functional.pil_to_tensor(pil_loader(path))
        return pixels
    except (OSError, ValueError, SyntaxError) as error:
        raise Refused(f"the image {path} (--data) cannot be decoded: {str(error).splitlines()[0]}") from None
