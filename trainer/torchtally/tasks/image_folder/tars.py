"""Images in tar files of WebDataset, each with its index, and with the labels in files `cls`."""

import hashlib
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from torchvision.datasets.folder import IMG_EXTENSIONS

from torchtally.accounting.order.locality import Locality
from torchtally.errors import Refused, require
from torchtally.tasks.image_folder.images import Data, Labeled

# Part of the order, so they are the same for all numbers of ranks. One rank alone reads in all lanes.
_WINDOW, _LANES = 32, 8
_OPEN = _WINDOW * _LANES


class Tars:
    """The images of tar files by number, from `torchtally.streams.webdataset.TarFiles` that decode nothing."""

    def __init__(self, samples: Any):
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def of(self, numbers: Sequence[int]) -> list[tuple[str, str | BinaryIO]]:
        return [_image(sample) for sample in self._samples.__getitems__(numbers)]


def scan(train: Path, test: Path) -> Data:
    """Read the labels of the tar files in both folders. Raises Refused and Volume."""
    require("webdataset", "tar files of images (--data) need", "webdataset")
    from torchtally.streams.webdataset import TarFiles

    samples, others = (TarFiles(_in(folder), decode=None, open_shards=_OPEN) for folder in (train, test))
    labels, other_labels = ([_label(*each) for each in data.only("cls")] for data in (samples, others))
    known = {*labels}
    count = len(known)
    if known != {*range(count)}:
        gap = min({*range(count)} - known)
        raise Refused(f"{train} (--data) has no sample of the class {gap}, and has one of {max(known)}")
    if max(other_labels) >= count:
        raise Refused(
            f"{test} (--data) has a sample of the class {max(other_labels)}, and {train} none: both need the same"
        )
    identity = repr((samples.fingerprint, others.fingerprint, labels, other_labels)).encode()
    return Data(
        classes=[str(each) for each in range(count)],
        train=Labeled(Tars(samples), labels),
        test=Labeled(Tars(others), other_labels),
        fingerprint=f"sha256:{hashlib.sha256(identity).hexdigest()[:16]}",
        order=Locality(window=_WINDOW, lanes=_LANES, sizes=samples.shard_sizes),
    )


def _in(folder: Path) -> list[str]:
    """The tar files in a folder, which are all that it may hold beside their indices. Raises Refused."""
    found = sorted(str(each) for each in folder.glob("*.tar"))
    if not found:
        raise Refused(f"{folder} (--data) must hold tar files, as train does")
    if other := next((each for each in sorted(folder.iterdir()) if each.is_dir()), None):
        raise Refused(
            f"{folder} (--data) must hold tar files or folders of images, and holds {other.name} beside {found[0]}"
        )
    return found


def _label(name: str, text: bytes) -> int:
    if not text.strip().isdigit():
        raise Refused(f"{name} (--data) must be the number of a class, from 0, and is {text[:40]!r}")
    return int(text)


def _image(sample: dict[str, Any]) -> tuple[str, BinaryIO]:
    name = f"{sample['__key__']} in {sample['__url__']}"
    found = [each for each in sample if f".{each}" in IMG_EXTENSIONS]
    if len(found) != 1:
        allowed = ", ".join(each.removeprefix(".") for each in IMG_EXTENSIONS)
        raise Refused(f"the sample {name} (--data) must have one image of {allowed}, and has {len(found)}")
    return name, BytesIO(sample[found[0]])
