"""The built-in tasks, each in a folder: `Options` in its options.py, free of torch, and `TASK` in its task.py.

`TASK` is a Task, or a function that makes one from the options if it depends on them.

The command line, the trainer and Spark's driver find a task by its folder.
"""

import argparse
import importlib
import pkgutil
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torchtally.console import Parser
from torchtally.errors import Refused
from torchtally.options import Training

if TYPE_CHECKING:  # imports torch, which --help does without
    from torchtally.training.task import Task


def _options(folder: str) -> type[Training]:
    found: type[Training] = importlib.import_module(f"{__name__}.{folder}.options").Options
    return found


OPTIONS: Mapping[str, type[Training]] = {
    folder.name.replace("_", "-"): _options(folder.name) for folder in pkgutil.iter_modules(__path__) if folder.ispkg
}


def load(name: str, options: Training | None = None) -> "Task":
    """The built-in task with this name and these options (default: its own). Raises Refused."""
    try:
        found: Any = importlib.import_module(f"{__name__}.{name.replace('-', '_')}.task").TASK
    except ModuleNotFoundError as error:
        raise Refused(f"the task {name} needs the Python package {error.name}: pip install {error.name}") from None
    task: Task = found(options or OPTIONS[name]()) if callable(found) else found
    return task


def parser(command: Literal["run", "evaluate", "spark [options]"]) -> Parser:
    """The parser of `TASK [options]`, which the entry point, Spark's driver and each rank use."""
    parser = Parser(prog=f"torchtally {command}", allow_abbrev=False)
    commands = parser.add_subparsers(dest="task", metavar="TASK", required=True)
    for name, kind in OPTIONS.items():
        task = commands.add_parser(
            name,
            help=kind.__doc__,
            description=kind.__doc__,
            allow_abbrev=False,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        _add_options(task, kind, evaluation=command == "evaluate")
    return parser


def options_of(arguments: argparse.Namespace) -> Training:
    """The options of `arguments.task`, as its dataclass."""
    kind = OPTIONS[arguments.task]
    return kind(**{each.name: getattr(arguments, each.name) for each in fields(kind) if hasattr(arguments, each.name)})


def _add_options(parser: argparse.ArgumentParser, kind: type[Training], evaluation: bool) -> None:
    if evaluation:
        parser.add_argument(
            "--checkpoint",
            required=True,
            default=argparse.SUPPRESS,
            type=Path,
            metavar="PATH",
            help="model.pt, a checkpoint, or a training's output folder: its model.pt, else its newest checkpoint",
        )
    exclusive: dict[str, Any] = defaultdict(parser.add_mutually_exclusive_group)
    in_evaluation = ("data", "output", *kind.names_of_model_options())
    for each in fields(kind):
        if not each.metadata or (evaluation and each.name not in in_evaluation):
            continue
        default = None if each.default is MISSING else each.default
        argument = dict(each.metadata)
        argument.pop("of_model", None)
        if default is None:
            default = argparse.SUPPRESS  # the option's help describes it
        group = exclusive[argument.pop("excludes")] if "excludes" in argument else parser
        group.add_argument(f"--{each.name.replace('_', '-')}", default=default, **argument)
