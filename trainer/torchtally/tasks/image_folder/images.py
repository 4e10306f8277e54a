"""Images that are decoded while the step before theirs is trained, and transformed when theirs begins, by threads."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any, BinaryIO

import loky
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from torchtally.errors import Refused
from torchtally.tasks.image_folder.data import Files

_Encoded = tuple[str, str | BinaryIO]  # its name, and its path or its contents
_RESIZED = 256 / 224  # of the shorter side to the crop of an evaluation, as in torchvision's own


class Images:
    """Pixels by index: uint8 (rows, 3, size, size). With `augmented`, crops and flips are random.

    Random values are drawn by the calling thread, in the order of the rows, so the same seed gives the same pixels.
    """

    def __init__(self, files: Files, size: int, *, augmented: bool, device: torch.device | None = None):
        self._files, self._size, self._augmented = files, size, augmented
        self._device = device or torch.device("cpu")
        self._ahead: dict[tuple[int, ...], list[Future[Tensor]]] = {}  # by the numbers of a step

    def __len__(self) -> int:
        return len(self._files)

    def to(self, device: torch.device) -> "Images":
        return Images(self._files, self._size, augmented=self._augmented, device=device)

    def begin(self, chosen: Tensor) -> None:
        """Begin to decode the images of the next step."""
        self._decode(tuple(chosen.tolist()))

    def __getitem__(self, chosen: Tensor | slice) -> Tensor:
        numbers = tuple(range(*chosen.indices(len(self))) if isinstance(chosen, slice) else chosen.tolist())
        pixels = (
            self._random(numbers) if self._augmented else self._threads.map(self._centered, self._files.of(numbers))
        )
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

    def _decode(self, numbers: tuple[int, ...]) -> None:
        self._ahead[numbers] = [self._threads.submit(_decoded, each) for each in self._files.of(numbers)]

    def _random(self, numbers: tuple[int, ...]) -> Iterable[Tensor]:
        if numbers not in self._ahead:
            self._decode(numbers)
        decoded = [each.result() for each in self._ahead.pop(numbers)]
        crops = [self._crop.make_params([each]) for each in decoded]
        flips = (torch.rand(len(decoded)) < 0.5).tolist()

        def transformed(image: Tensor, crop: dict[str, Any], flip: bool) -> Tensor:
            cropped: Tensor = self._crop.transform(image, crop)
            return functional.horizontal_flip(cropped) if flip else cropped

        return self._threads.map(transformed, decoded, crops, flips)

    def _centered(self, encoded: _Encoded) -> Tensor:
        return _centered(self._size)(_decoded(encoded))


def _centered(size: int) -> Callable[[Tensor], Tensor]:
    centered: Callable[[Tensor], Tensor] = v2.Compose([v2.Resize(round(size * _RESIZED)), v2.CenterCrop(size)])
    return centered


def _decoded(encoded: _Encoded) -> Tensor:
    """Pixels (3, height, width) as uint8. Raises Refused."""
    name, source = encoded
    try:
        with Image.open(source) as image:
            pixels: Tensor = functional.pil_to_tensor(image.convert("RGB"))
        return pixels
    except (OSError, ValueError, SyntaxError) as error:
        raise Refused(f"the image {name} (--data) cannot be decoded: {str(error).splitlines()[0]}") from None
