"""The command line. Each command imports torch and other heavy modules where it needs them."""

import argparse
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from torchtally import console, events, standard_output, tasks
from torchtally.environment import pod_name
from torchtally.errors import Exhausted, Refused
from torchtally.pod import termination_message

_HELP = f"""\
Distributed PyTorch on Kubernetes that accounts for every sample.

In the pods of a job, or on this machine; these need PyTorch:
  run TASK [options]            train a built-in task
  run SCRIPT.py [arguments]     train with a script of your own
  run -- COMMAND [arguments]    train with any program
  evaluate TASK --checkpoint PATH [options]
                                evaluate a trained model
  spark [options of Spark] TASK [options]
                                train in the executors of a Spark cluster

Beside a job, without PyTorch:
  verify PATH… | --job NAME     prove from logs that each sample was consumed as the contract says
  jobs COMMAND                  list, show, and watch the jobs of a cluster, and copy their results
  page JOB FILE                 write a page of a run, with charts
  local -f FILE                 run a PyTorchJob or a TrainJob on this machine as its operator does in a cluster
  observe COMMAND               observe a training in any image, without a changed line
  check [SCRIPT]                check this machine, a cluster, and two steps of a script, before a training

Tasks: {", ".join(tasks.OPTIONS)}.
`torchtally COMMAND --help` shows the options of a command, and `torchtally run TASK --help` those of a task.
"""
# The command of the module torchtally.commands.NAME, and its first arguments.
_BESIDE = {
    "verify": ["verify"],
    "jobs": ["jobs"],
    "page": ["jobs", "report"],
    "local": ["local"],
    "observe": ["observe"],
    "check": ["check"],
}


def main(argv: list[str] | None = None) -> int:
    """Run `argv` and return the exit code (see errors.py)."""
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] in _BESIDE:
        name, *first = _BESIDE[argv[0]]
        module = import_module(f"torchtally.commands.{name}")
        return console.run(f"torchtally {name}", partial(module.main, [*first, *argv[1:]]))
    try:
        if argv[:1] == ["spark"]:
            return int(_training("torchtally.spark").main(argv[1:], _is_complete))
        rank = _launch(_parse(argv))
    except (Refused, Exhausted) as ending:
        termination_message.announce(ending)
        if argv[:1] in (["run"], ["evaluate"]):  # in a pod, whose log tells its end
            event = events.Ended(code=ending.code, kind="known", cause=str(ending))
            events.emit(event, events.Source(pod=pod_name()))
        return ending.code
    return rank()


@dataclass(frozen=True)
class _Program:
    """The program of each rank."""

    command: list[str]
    module: str | None = None  # the module of torchtally that the command runs
    task: argparse.Namespace | None = None  # to train


def _parse(argv: list[str]) -> _Program:
    match argv:
        case ["run", "--"]:
            raise Refused("`torchtally run --` needs a program after --")
        case [script, *_] if script.endswith(".py"):
            raise Refused(
                f"{script!r} is not a command of torchtally: did you mean `torchtally run {shlex.join(argv)}`?"
            )
        case ["run", "--", *command]:
            return _Program(command)
        case ["run", script, *_] if script.endswith(".py"):
            return _Program(_python(*argv[1:]))
        case ["run", *task]:
            arguments = tasks.parser("run").parse_args(task)  # a mistake ends the pod before any rank starts
            return _Program(_python("-m", "torchtally.commands.train", *task), "torchtally.commands.train", arguments)
        case ["evaluate", *task]:
            tasks.parser("evaluate").parse_args(task)
            return _Program(_python("-m", "torchtally.commands.evaluate", *task), "torchtally.commands.evaluate")
    parser = console.Parser(
        prog="torchtally",
        usage="torchtally COMMAND [options]",
        description=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    parser.add_argument("command", choices=("run", "evaluate", "spark", *_BESIDE), help=argparse.SUPPRESS)
    parser.parse_args(argv)
    raise AssertionError("argparse has ended the program")


class _Version(argparse.Action):
    """Looks up the version on demand, because the lookup is slow; argparse's action needs it in advance."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from importlib.metadata import version

        print(version("torchtally"))
        parser.exit()


def _python(*program: str) -> list[str]:
    return [sys.executable, "-u", *program]


def _training(module: str) -> Any:
    """A module that imports torch. Raises Refused where a package of the extra `train` is missing."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise Refused(
            f"training needs the Python package {error.name}: install torchtally with its extra `train`, as "
            "`pip install './trainer[train]'` does in a clone of its repository"
        ) from None


def _launch(program: _Program) -> Callable[[], int]:
    """Return in a forked rank alone, with what it runs."""
    launch = _training("torchtally.pod.launch")
    is_complete = partial(_is_complete, program.task) if program.task else lambda _: False
    output = options = None
    if program.task:
        chosen = tasks.options_of(program.task)
        output = chosen.output
        options = ", ".join(f"{name}={value}" for name, value in chosen.training_options().items() if value is not None)
    code: Callable[[], int] | int = launch.launch(
        program.command, os.environ, is_complete, program.module, output, options
    )
    if callable(code):
        return code
    standard_output.flush()
    sys.stderr.flush()
    os._exit(code)  # Python's own exit aborts the process if a thread is in the store's C++ code


def _is_complete(arguments: argparse.Namespace, output: Path) -> bool:
    """Whether the training with these arguments has ended in its output folder, which is `output` by default."""
    options = tasks.options_of(arguments)
    folder = options.output or output
    if not os.path.exists(folder / "proof.json"):  # noqa: PTH110  # Path.exists raises on a failing volume
        return False  # before an import of torch
    from torchtally.training import artifacts

    return artifacts.is_complete(arguments.task, options, tasks.load(arguments.task, options).fingerprint, folder)


if __name__ == "__main__":
    sys.exit(main())
