"""The data that tests train on, where a run would look for it."""

import contextlib
import gzip
import os
import shutil
import tempfile
from pathlib import Path


def fetched(name: str) -> Path:
    """The folder with the files of the dataset of this name, fetched if it has to be."""
    from torchtally.datasets import idx  # here, because torch takes seconds, which skipped tests should not
    from torchtally.environment import Places

    places = Places.from_env(os.environ)
    if name == "image-folder":
        from torchtally.tasks.image_folder import folder

        return folder.demo(places.cache).absolute()
    (dataset,) = (each for each in (idx.FASHION_MNIST, idx.MNIST) if each.name == name)
    idx.load(dataset, places.data, places.cache)
    return (places.data or places.cache / name).absolute()


def unpacked(name: str) -> Path:
    """The same without compression, which takes each rank that reads the files a quarter of a second."""
    from torchtally.environment import Places

    cache = Places.from_env(os.environ).cache.absolute()
    folder = cache / f"{name}-unpacked"
    if not folder.exists():
        packed = fetched(name)
        made = Path(tempfile.mkdtemp(dir=cache))
        for file in packed.glob("*-ubyte*"):
            data = file.read_bytes()
            (made / file.name.removesuffix(".gz")).write_bytes(gzip.decompress(data) if file.suffix == ".gz" else data)
        with contextlib.suppress(OSError):  # another worker of the tests was faster
            made.rename(folder)
        shutil.rmtree(made, ignore_errors=True)
    return folder
