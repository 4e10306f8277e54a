"""The data that tests train on, where a run would look for it."""

import os
from pathlib import Path


def fetched(name: str) -> Path:
    """The folder with the files of the dataset of this name, fetched if it has to be."""
    from torchtally import data  # here, because torch takes seconds, which skipped tests should not
    from torchtally.job import Places

    places = Places.from_env(os.environ)
    (dataset,) = (each for each in (data.FASHION_MNIST, data.MNIST) if each.name == name)
    data.load(dataset, places.data, places.cache)
    return (places.data or places.cache / name).absolute()
