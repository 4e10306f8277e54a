"""The command line. Each command imports torch and other heavy modules where it needs them."""

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from torchtally import standard_output, tasks
from torchtally.errors import Exhausted, Refused
from torchtally.pod import termination_message

_USAGE = """torchtally run TASK [options]
       torchtally run -- COMMAND [arguments]
       torchtally run SCRIPT.py [arguments]
       torchtally evaluate TASK --checkpoint PATH [options]
       torchtally spark [options of Spark] TASK [options]"""


def main(argv: list[str] | None = None) -> int:
    """Run `argv` and return the exit code (see errors.py)."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["spark"]:
        from torchtally import spark

        return spark.main(argv[1:], _is_complete)
    try:
        rank = _launch(_parse(argv))
    except (Refused, Exhausted) as ending:
        termination_message.announce(ending)
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
    parser = argparse.ArgumentParser(
        prog="torchtally",
        usage=_USAGE,
        description="Run distributed PyTorch in the pods of a PyTorchJob, or on this machine, and account for every "
        f"sample. Tasks: {', '.join(tasks.OPTIONS)}. Options: torchtally run TASK --help.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    parser.add_argument("command", choices=("run", "evaluate", "spark"))
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


def _launch(program: _Program) -> Callable[[], int]:
    """Return in a forked rank alone, with what it runs."""
    from torchtally.pod import launch  # imports torch

    is_complete = partial(_is_complete, program.task) if program.task else lambda _: False
    output = tasks.options_of(program.task).output if program.task else None
    code = launch.launch(program.command, os.environ, is_complete, program.module, output)
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
