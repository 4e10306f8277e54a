"""The command line: what to run. Everything heavy is imported by what runs it."""

import argparse
import os
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from torchtally import tasks
from torchtally.errors import REFUSED, Refused
from torchtally.pod import termination_message

_USAGE = """torchtally run TASK [options]
       torchtally run -- COMMAND [arguments]
       torchtally run -m MODULE [arguments]
       torchtally evaluate TASK --checkpoint PATH [options]
       torchtally spark [options of Spark] TASK [options]"""


def main(argv: list[str] | None = None) -> int:
    """Run `argv` and return the exit code (see errors.py)."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["spark"]:
        from torchtally.spark import driver

        return driver.main(argv[1:], _is_complete)
    try:
        _launch(_asked(argv))
    except Refused as sentence:
        termination_message.announce(sentence)
        return REFUSED


@dataclass(frozen=True)
class _Asked:
    """What each rank runs."""

    command: list[str]
    module: str | None = None  # of ours, which the command runs
    task: argparse.Namespace | None = None  # to train


def _asked(argv: list[str]) -> _Asked:
    match argv:
        case ["run", "--"] | ["run", "-m"]:
            raise Refused(f"`torchtally {' '.join(argv)}` needs something to run after {argv[-1]}")
        case ["run", "--", *command]:
            return _Asked(command)
        case ["run", "-m", *module]:
            return _Asked(_python(*module))
        case ["run", *task]:
            arguments = tasks.parser("run").parse_args(task)  # a mistake ends here, once, before all else
            return _Asked(_python("torchtally.commands.train", *task), "torchtally.commands.train", arguments)
        case ["evaluate", *task]:
            tasks.parser("evaluate").parse_args(task)
            return _Asked(_python("torchtally.commands.evaluate", *task), "torchtally.commands.evaluate")
    parser = argparse.ArgumentParser(
        prog="torchtally",
        usage=_USAGE,
        description="Run distributed PyTorch in the pods of a PyTorchJob, or on this machine, and account for every "
        f"sample. Tasks: {', '.join(tasks.OPTIONS)}. Options: torchtally run TASK --help.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show it and exit")
    parser.add_argument("command", choices=("run", "evaluate", "spark"))
    parser.parse_args(argv)
    raise AssertionError("argparse has ended the program")


class _Version(argparse.Action):
    """argparse's own wants it at once, and to look it up takes half as long as all else."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from importlib.metadata import version

        print(version("torchtally"))
        parser.exit()


def _python(*module: str) -> list[str]:
    return [sys.executable, "-u", "-m", *module]


def _launch(asked: _Asked) -> NoReturn:
    from torchtally.pod import launch  # torch: not for --help

    task = asked.task
    is_complete = partial(_is_complete, task) if task else lambda _: False
    code = launch.launch(asked.command, os.environ, is_complete, asked.module)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a thread may be in the store's C++, where Python's own end would abort the process


def _is_complete(task: argparse.Namespace, output: Path) -> bool:
    chosen = tasks.chosen(task)
    folder = chosen.output or output
    if not os.path.exists(folder / "proof.json"):  # noqa: PTH110  # it raises nothing, whatever the volume does
        return False  # without importing what would tell more
    from torchtally.training import artifacts

    return artifacts.is_complete(task.task, chosen, tasks.load(task.task).fingerprint, folder)


if __name__ == "__main__":
    sys.exit(main())
