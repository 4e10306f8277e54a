"""What an image-folder training reads: the files of images, wherever they are, and their labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from torchtally.proof.order import Order


class Files(Protocol):
    """Encoded images by number."""

    def __len__(self) -> int: ...

    def of(self, numbers: Sequence[int]) -> list[tuple[str, str | BinaryIO]]:
        """The name of each, for a sentence, and its path or its contents."""


@dataclass(frozen=True)
class Labeled:
    """The images of a phase."""

    files: Files
    labels: list[int]


@dataclass(frozen=True, kw_only=True)
class Data:
    """The images of both phases, and the order in which a training takes them."""

    classes: list[str]
    train: Labeled
    test: Labeled
    fingerprint: str
    order: Order = "feistel-1"
