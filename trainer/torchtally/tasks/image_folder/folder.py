"""The folder of an image-folder training: where it is, its classes and files, and what identifies them."""

import hashlib
import shutil
import tempfile
from pathlib import Path

from filelock import FileLock
from PIL import Image
from torchvision.datasets.folder import IMG_EXTENSIONS, find_classes, make_dataset

from torchtally.datasets import idx
from torchtally.errors import Refused
from torchtally.tasks.image_folder.images import Data, Labeled

_DEMO = {"train": 100, "test": 30}  # images of each class
_CLASSES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle-boot")


def scan(root: Path) -> Data:
    """Find the classes and files in `root`, in the order of their names. Raises Refused."""
    try:
        test = next((root / name for name in ("val", "test") if (root / name).is_dir()), root / "test")
        classes, numbers = find_classes(root / "train")
        if (others := find_classes(test)[0]) != classes:
            raise FileNotFoundError(f"{test} has the classes {', '.join(others)}, and train has {', '.join(classes)}")
        files = {
            name: make_dataset(str(place), numbers, IMG_EXTENSIONS)
            for name, place in (("train", root / "train"), ("test", test))
        }
        train, tests = (Labeled([path for path, _ in each], [label for _, label in each]) for each in files.values())
        return Data(classes=classes, train=train, test=tests, fingerprint=_fingerprint(root, files))
    except OSError as error:
        raise Refused(
            f"the data folder {root} (--data) must hold the folders train and val or test, each with a folder of "
            f"images for each class: {str(error).splitlines()[0]}"
        ) from None


def demo(cache: Path) -> Path:
    """Return a folder with the first Fashion-MNIST images of each class, which is made on first use. Raises Refused."""
    root = cache / "image-folder"
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / ".image-folder.lock"):
            if not root.exists():
                _make(root, cache)
    except OSError as error:
        raise Refused(f"the cache folder {root} (TORCHTALLY_CACHE) cannot be used: {error}") from None
    return root


def _make(root: Path, cache: Path) -> None:
    train_images, train_labels, test_images, test_labels = idx.load(idx.FASHION_MNIST, None, cache)
    with tempfile.TemporaryDirectory(dir=root.parent) as temporary:
        for phase, images, labels in (("train", train_images, train_labels), ("test", test_images, test_labels)):
            for label, name in enumerate(_CLASSES):
                place = Path(temporary, "whole", phase, name)
                place.mkdir(parents=True)
                for number in (labels == label).nonzero().flatten()[: _DEMO[phase]].tolist():
                    Image.fromarray(images[number].numpy()).save(place / f"{number:05}.png")
        shutil.move(Path(temporary, "whole"), root)


def _fingerprint(root: Path, files: dict[str, list[tuple[str, int]]]) -> str:
    """The hash of the names and sizes of all files: to read their contents would take as long as an epoch."""
    sha256 = hashlib.sha256()
    for phase, samples in files.items():
        for path, label in samples:
            name = Path(path).relative_to(root).as_posix()
            sha256.update(f"{phase}\0{label}\0{name}\0{Path(path).stat().st_size}\n".encode())
    return f"sha256:{sha256.hexdigest()[:16]}"
