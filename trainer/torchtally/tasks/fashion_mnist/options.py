"""The options of the task fashion-mnist."""

from dataclasses import dataclass

from torchtally.options import Training, option, whole_number


@dataclass(frozen=True, kw_only=True)
class Options(Training):
    """A multilayer perceptron on Fashion-MNIST."""

    hidden: int = option(512, "width of both hidden layers", type=whole_number(1, 1 << 20), metavar="N", of_model=True)
