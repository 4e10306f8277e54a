"""The command line: what to run. Everything heavy is imported by what runs it."""

import argparse
import os
import sys
from importlib.metadata import version

from torchtally import farewell, options
from torchtally.errors import REFUSED, Refused

_USAGE = """torchtally run TASK [options]
       torchtally run -- COMMAND [arguments]
       torchtally run -m MODULE [arguments]"""


def main(argv: list[str] | None = None) -> int:
    """Run `argv` and return the exit code (see errors.py)."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        return _launch(_command(argv))
    except Refused as sentence:
        farewell.say(sentence)
        return REFUSED


def task_parser(prog: str) -> argparse.ArgumentParser:
    """The parser of `TASK [options]`, which the entry point and each rank share."""
    parser = argparse.ArgumentParser(prog=prog, allow_abbrev=False)
    options.add_tasks(parser)
    return parser


def _command(argv: list[str]) -> list[str]:
    """The command that each rank runs."""
    match argv:
        case ["run", "--"] | ["run", "-m"]:
            raise Refused(f"`torchtally {' '.join(argv)}` needs something to run after {argv[-1]}")
        case ["run", "--", *command]:
            return command
        case ["run", "-m", *module]:
            return [sys.executable, "-u", "-m", *module]
        case ["run", *task]:
            task_parser("torchtally run").parse_args(task)  # a mistake ends here, once, before anything starts
            return [sys.executable, "-u", "-m", "torchtally.worker", *task]
    parser = argparse.ArgumentParser(
        prog="torchtally",
        usage=_USAGE,
        description="Run distributed PyTorch in the pods of a PyTorchJob, or on this machine, and account for every "
        f"sample. Tasks: {', '.join(options.TASKS)}. Options: torchtally run TASK --help.",
    )
    parser.add_argument("--version", action="version", version=version("torchtally"))
    parser.add_argument("command", choices=("run",))
    parser.parse_args(argv)
    raise AssertionError("argparse has ended the program")


def _launch(command: list[str]) -> int:
    # The agent asks stores that may be gone, and says itself what that means: torch's C++ would add its own backtraces.
    quiet = "TORCH_CPP_LOG_LEVEL" not in os.environ
    if quiet:
        os.environ["TORCH_CPP_LOG_LEVEL"] = "FATAL"  # read once, on import
    from torchtally import launch  # torch: not for --help

    if quiet:
        del os.environ["TORCH_CPP_LOG_LEVEL"]  # a rank's own affair
    return launch.launch(command, os.environ)


if __name__ == "__main__":
    sys.exit(main())
