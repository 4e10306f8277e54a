"""The data that tests train on, where a run would look for it."""

import os
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
