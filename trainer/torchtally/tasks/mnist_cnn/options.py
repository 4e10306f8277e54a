"""The options of the task mnist-cnn."""

from dataclasses import dataclass

from torchtally.options import Training, override_default


@dataclass(frozen=True, kw_only=True)
class Options(Training):
    """A convolutional network on MNIST."""

    epochs: int = override_default("epochs", 3)
    batch_size: int = override_default("batch_size", 100)
