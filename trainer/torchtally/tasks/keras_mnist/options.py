"""The options of the task keras-mnist."""

from dataclasses import dataclass

from torchtally.options import Training, override_default


@dataclass(frozen=True, kw_only=True)
class Options(Training):
    """A Keras model with BatchNormalization on MNIST."""

    epochs: int = override_default("epochs", 2)
    batch_size: int = override_default("batch_size", 64)
    lr: float = override_default("lr", 6e-3)
