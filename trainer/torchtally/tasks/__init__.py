"""The built-in tasks, a folder each: `Options` in its `__init__`, free of torch, and `TASK` in its task.py.

A folder that is added here is a task: the command line, the trainer and Spark's driver find it.
"""

import argparse
import importlib
import pkgutil
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torchtally.options import Training

if TYPE_CHECKING:  # torch: not for --help
    from torchtally.training.task import Task


def _options(folder: str) -> type[Training]:
    found: type[Training] = importlib.import_module(f"{__name__}.{folder}").Options
    return found


OPTIONS: Mapping[str, type[Training]] = {
    folder.name.replace("_", "-"): _options(folder.name) for folder in pkgutil.iter_modules(__path__) if folder.ispkg
}


def load(name: str) -> "Task":
    """The built-in task of this name."""
    found: Task = importlib.import_module(f"{__name__}.{name.replace('-', '_')}.task").TASK
    return found


def parser(command: Literal["run", "evaluate", "spark [options]"]) -> argparse.ArgumentParser:
    """The parser of `TASK [options]`, which the entry point, Spark's driver and each rank share."""
    parser = argparse.ArgumentParser(prog=f"torchtally {command}", allow_abbrev=False)
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


def chosen(arguments: argparse.Namespace) -> Training:
    """The options of `arguments.task`, as its dataclass."""
    kind = OPTIONS[arguments.task]
    return kind(**{each.name: getattr(arguments, each.name) for each in fields(kind) if hasattr(arguments, each.name)})


def _add_options(parser: argparse.ArgumentParser, kind: type[Training], evaluation: bool) -> None:
    if evaluation:
        parser.add_argument(
            "--checkpoint",
            required=True,
            default=argparse.SUPPRESS,  # has none to show
            type=Path,
            metavar="PATH",
            help="model.pt, a checkpoint, or a training's output folder: its model.pt, else its newest checkpoint",
        )
    instead: dict[str, Any] = defaultdict(parser.add_mutually_exclusive_group)
    of_model = kind.names_of_model()
    for each in fields(kind):
        if not each.metadata or (evaluation and each.name not in ("data", "output", "tally", *of_model)):
            continue
        default = None if each.default is MISSING else each.default
        argument = dict(each.metadata)
        argument.pop("of_model", None)
        if default is None:
            default = argparse.SUPPRESS  # its help says what happens then
        group = instead[argument.pop("instead")] if "instead" in argument else parser
        group.add_argument(f"--{each.name.replace('_', '-')}", default=default, **argument)
