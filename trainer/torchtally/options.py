"""What a user may choose for each task: typed, checked once, free of torch so that --help is quick."""

import argparse
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from torchtally.proof.contract import CONTRACTS, Contract

AllReduce = Literal["float32", "bfloat16"]


def whole(low: int, high: int = (1 << 63) - 1) -> Callable[[str], int]:
    """A parser of whole numbers from `low` to `high`."""

    def parse(text: str) -> int:
        if not text.lstrip("+-").isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} must be a whole number from {low} to {high}")
        return int(text)

    return parse


def positive(text: str) -> float:
    """Parse a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number above 0")
    return value


def _option(default: Any, description: str, **argument: Any) -> Any:
    """An option's default, its help and what argparse takes; of those with the same `instead` one may be given."""
    return field(default=default, metadata={"help": description, **argument})


@dataclass(frozen=True, kw_only=True)
class Training:
    """What every task has."""

    epochs: int = _option(10, "passes over the training data", type=whole(1, 1 << 31), metavar="N")
    batch_size: int = _option(32, "samples a rank and step", type=whole(1, 1 << 31), metavar="N", instead="batch")
    global_batch_size: int | None = _option(
        None,
        "samples a step of all ranks together, which makes the same steps whatever their number",
        type=whole(1, 1 << 40),
        metavar="N",
        instead="batch",
    )
    lr: float = _option(1e-3, "learning rate", type=positive, metavar="X")
    seed: int = _option(0, "of the order of samples and of the first weights", type=whole(0), metavar="N")
    contract: Contract | None = _option(
        None,
        "how samples divide over ranks in training (default: exact; drop_last for a model with BatchNorm)",
        choices=CONTRACTS,
    )
    all_reduce: AllReduce = _option(
        "float32",
        "type in which gradients are summed over the ranks: bfloat16 halves what goes over the network and loses "
        "precision of the sum; ranks of one pod that sum in memory, on CPUs, do so in float32 in any case",
        choices=("float32", "bfloat16"),
    )
    tally: Literal["enforce", "report"] = _option(
        "enforce", "what a failed proof does: end the run, or only say so", choices=("enforce", "report")
    )
    save_seconds: float = _option(
        300.0, "between two checkpoints; the end of an epoch makes one, too", type=positive, metavar="X"
    )
    keep: int = _option(2, "checkpoints to keep beside the best one", type=whole(1, 1 << 20), metavar="N")
    data: Path | None = _option(
        None, "folder that holds the data (default: TORCHTALLY_DATA, else it is fetched)", type=Path, metavar="DIR"
    )
    output: Path | None = _option(
        None,
        "folder for model.pt, proof.json and checkpoints, or evaluation.json (default: TORCHTALLY_OUTPUT, else "
        "./output)",
        type=Path,
        metavar="DIR",
    )
    mlflow: str | None = _option(
        None,
        "record the run in this experiment of MLflow (MLFLOW_TRACKING_URI, else a database in the output folder)",
        metavar="NAME",
    )


def _instead(name: str, default: Any) -> Any:
    """An option of every task with a default of its own."""
    return field(default=default, metadata=Training.__dataclass_fields__[name].metadata)


def _without(name: str) -> Any:
    """An option that a task does not offer: it stays at its default."""
    return field(default=Training.__dataclass_fields__[name].default)


@dataclass(frozen=True, kw_only=True)
class FashionMnist(Training):
    """A multilayer perceptron on Fashion-MNIST."""

    hidden: int = _option(512, "width of both hidden layers", type=whole(1, 1 << 20), metavar="N")


@dataclass(frozen=True, kw_only=True)
class MnistCnn(Training):
    """A convolutional network on MNIST."""

    epochs: int = _instead("epochs", 3)
    batch_size: int = _instead("batch_size", 100)


@dataclass(frozen=True, kw_only=True)
class KerasMnist(Training):
    """A Keras model with BatchNormalization on MNIST."""

    epochs: int = _instead("epochs", 2)
    batch_size: int = _instead("batch_size", 64)
    lr: float = _instead("lr", 6e-3)


@dataclass(frozen=True, kw_only=True)
class ParameterServer(Training):
    """An embedding table on a parameter server; DDP and RPC together."""

    epochs: int = _instead("epochs", 100)
    batch_size: int = _option(5, "samples a trainer and step", type=whole(1, 1 << 31), metavar="N")
    lr: float = _instead("lr", 0.05)
    global_batch_size: int | None = _without("global_batch_size")
    contract: Contract | None = _without("contract")
    all_reduce: AllReduce = _without("all_reduce")
    save_seconds: float = _without("save_seconds")
    keep: int = _without("keep")
    data: Path | None = _without("data")
    mlflow: str | None = _without("mlflow")
    form: Literal["rpc", "collective"] = _option(
        "rpc",
        "how trainers reach the table: by RPC to the server, or by collectives, its rows shared out over server and "
        "trainers",
        choices=("rpc", "collective"),
    )


TASKS: dict[str, type[Training]] = {
    "fashion-mnist": FashionMnist,
    "mnist-cnn": MnistCnn,
    "keras-mnist": KerasMnist,
    "parameter-server": ParameterServer,
}


_OF_NO_WEIGHT = ("save_seconds", "keep", "tally", "data", "output", "mlflow")


def identity(chosen: Training) -> dict[str, Any]:
    """The options that make it the same training: with others its checkpoints are another one's."""
    return {name if name == "seed" else f"option {name}": value for name, value in of_training(chosen).items()}


def of_training(chosen: Training) -> dict[str, Any]:
    """The same by the names of their fields."""
    return {name: value for name, value in vars(chosen).items() if name not in _OF_NO_WEIGHT}


def add_tasks(parser: argparse.ArgumentParser, evaluation: bool = False) -> None:
    """Give `parser` a command for each task, with the options for its training or for an `evaluation` alone."""
    commands = parser.add_subparsers(dest="task", metavar="TASK", required=True)
    for name, kind in TASKS.items():
        command = commands.add_parser(
            name,
            help=kind.__doc__,
            description=kind.__doc__,
            allow_abbrev=False,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        if evaluation:
            command.add_argument(
                "--checkpoint",
                required=True,
                default=argparse.SUPPRESS,  # has none to show
                type=Path,
                metavar="PATH",
                help="model.pt, a checkpoint, or a training's output folder: its model.pt, else its newest checkpoint",
            )
        instead: dict[str, Any] = defaultdict(command.add_mutually_exclusive_group)
        for each in fields(kind):
            if not each.metadata or (evaluation and not _evaluates(each.name)):
                continue
            default = None if each.default is MISSING else each.default
            text = dict(each.metadata)
            if default is None:
                default = argparse.SUPPRESS  # its help says what happens then
            group = instead[text.pop("instead")] if "instead" in text else command
            group.add_argument(f"--{each.name.replace('_', '-')}", default=default, **text)


def of_model(chosen: Training) -> dict[str, Any]:
    """The options that make the task's model."""
    return {name: value for name, value in vars(chosen).items() if _of_model(name)}


def _evaluates(name: str) -> bool:
    return name in ("data", "output", "tally") or _of_model(name)


def _of_model(name: str) -> bool:
    return name not in Training.__dataclass_fields__ and name != "form"


def chosen(arguments: argparse.Namespace) -> Training:
    """The options of `arguments.task`, as its dataclass."""
    kind = TASKS[arguments.task]
    return kind(**{each.name: getattr(arguments, each.name) for each in fields(kind) if hasattr(arguments, each.name)})
